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

// Thrown when sending to or receiving from `peer` failed; -1: one of several,
// it is not known which.
class PeerFailure : public std::runtime_error {
 public:
  PeerFailure(int peer, const std::string& what)
      : std::runtime_error(what), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// Returns a copy of an exception's message. A separate function, for the
// suppressions of ThreadSanitizer.
std::string MessageOf(const std::exception& error);

// Returns whether gloo's message is of a wait that took too long: gloo throws
// one type for that and for a broken connection.
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
  // Makes every wait throw `failure`: one operation that failed ends those that
  // run beside it. The first failure stays; an interruption has precedence.
  void Fail(const PeerFailure& failure);
  void ThrowIfEnded() const;
  // Waits for `duration`; returns true as soon as Interrupt or Fail was called.
  bool AwaitEnd(absl::Duration duration);

  // The connection to a peer broke, and everything that it carried has arrived.
  // Wakes every wait, which checks whether it needed that peer: a peer may
  // leave when others no longer need it.
  void Lose(const PeerFailure& loss);
  std::optional<PeerFailure> LossAmong(const std::vector<int>& peers) const;
  // Calls `on_loss` for each peer that is lost, present and future, before the
  // communicator has ended; at the end gloo itself closes the other
  // connections. Called without a lock. Once.
  void WatchLosses(std::function<void(int peer)> on_loss);
  // Held while a wait determines whether it has failed: gloo may let other
  // operations fail then, which must not be taken for the cause.
  Mutex* settling() ABSL_LOCK_RETURNED(settling_) { return &settling_; }

  void CountSent(int64_t bytes) {
    sent_bytes_.fetch_add(bytes);
    if (parent_ != nullptr) parent_->CountSent(bytes);
  }
  // Returns the payload given to the transport, without gloo's headers of its
  // messages.
  int64_t sent_bytes() const { return sent_bytes_.load(); }

  // Applies the above to this buffer too, also what was called before.
  void Register(::gloo::transport::UnboundBuffer* buffer);
  void Unregister(::gloo::transport::UnboundBuffer* buffer);
  // Lets the next wait in each direction, or the current one, return false.
  static void InterruptWait(::gloo::transport::UnboundBuffer* buffer);

 private:
  void InterruptWaits() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<TransportControl> parent_;
  std::atomic<int64_t> sent_bytes_{0};
  // Whether any of the fields below was set, which is rare.
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
