#ifndef COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_CONTROL_H_
#define COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_CONTROL_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gloo/transport/unbound_buffer.h>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace coxswain {

// Thrown by a wait that TransportControl interrupted.
class WaitInterrupted : public std::exception {};

// Thrown when sending to or receiving from `peer` failed; -1: it is not known
// which one of several.
class PeerFailure : public std::runtime_error {
 public:
  PeerFailure(int peer, const std::string& what)
      : std::runtime_error(what), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// Returns a copy of an exception's message. A function of its own, for
// ThreadSanitizer's list of what it cannot judge.
std::string MessageOf(const std::exception& error);

// Returns whether gloo's message is of a wait that took too long. It throws one
// type for that and for a broken connection.
bool IsTimeout(absl::string_view message);

// What every buffer of one communicator reports to: counts what is sent, and
// ends waits. Thread-safe. Shared by the communicator and the transport
// objects that gloo holds.
class TransportControl {
 public:
  // What is sent counts for `parent` too, if there is one.
  explicit TransportControl(std::shared_ptr<TransportControl> parent = nullptr)
      : parent_(std::move(parent)) {}

  // Makes every wait, present and future, throw WaitInterrupted. Does not
  // block.
  void Interrupt();
  // Makes every one throw `failure`: one operation that failed ends those that
  // run beside it. The first stays; an interruption goes before it.
  void Fail(const PeerFailure& failure);
  void ThrowIfEnded() const;
  // Sleeps; true as soon as one of the above has come.
  bool AwaitEnd(absl::Duration duration);

  // The connection to a peer broke, and all that it will ever have carried has
  // arrived. Wakes every wait, to see what that means for it: a peer may well
  // leave when others no longer need it.
  void Lose(const PeerFailure& loss);
  std::optional<PeerFailure> LossAmong(const std::vector<int>& peers) const;
  // Calls `on_loss` for each peer that is lost, present and future, before the
  // communicator has ended: then gloo closes the other connections itself.
  // Called without a lock. Once.
  void WatchLosses(std::function<void(int peer)> on_loss);
  // Held while a wait finds out whether it has failed, since gloo may let other
  // operations fail then, which are not to be taken for the cause.
  Mutex* settling() ABSL_LOCK_RETURNED(settling_) { return &settling_; }

  void CountSent(int64_t bytes) {
    sent_bytes_.fetch_add(bytes);
    if (parent_ != nullptr) parent_->CountSent(bytes);
  }
  // Payload given to the transport; without gloo's headers of its messages.
  int64_t sent_bytes() const { return sent_bytes_.load(); }

  // What is above holds for this buffer too, also if it came before.
  void Register(::gloo::transport::UnboundBuffer* buffer);
  void Unregister(::gloo::transport::UnboundBuffer* buffer);
  // Lets the next wait in each direction, or the one under way, return false.
  static void InterruptWait(::gloo::transport::UnboundBuffer* buffer);

 private:
  void InterruptWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<TransportControl> parent_;
  std::atomic<int64_t> sent_bytes_{0};
  // Whether any of what is below was set, which is rarely so.
  std::atomic<bool> disturbed_{false};
  Mutex settling_;  // before mutex_
  mutable Mutex mutex_;
  CondVar ended_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<PeerFailure> failure_ ABSL_GUARDED_BY(mutex_);
  std::map<int, PeerFailure> losses_ ABSL_GUARDED_BY(mutex_);
  std::function<void(int peer)> on_loss_ ABSL_GUARDED_BY(mutex_);
  std::set<::gloo::transport::UnboundBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_CONTROL_H_
