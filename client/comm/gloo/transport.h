#ifndef COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_H_
#define COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "base/mutex.h"

namespace coxswain {

// What every buffer of one communicator reports to: counts what is sent, and
// interrupts all waits. Thread-safe. Shared by the communicator and the
// transport objects that gloo holds.
class TransportControl {
 public:
  // What is sent counts for `parent` too, if there is one.
  explicit TransportControl(std::shared_ptr<TransportControl> parent = nullptr)
      : parent_(std::move(parent)) {}

  // Makes every wait, present and future, throw WaitInterrupted. Does not
  // block.
  void Interrupt();
  bool interrupted() const { return interrupted_.load(); }

  void CountSent(int64_t bytes) {
    sent_bytes_.fetch_add(bytes);
    if (parent_ != nullptr) parent_->CountSent(bytes);
  }
  // Payload given to the transport; without gloo's headers of its messages.
  int64_t sent_bytes() const { return sent_bytes_.load(); }

  void Register(::gloo::transport::UnboundBuffer* buffer);
  void Unregister(::gloo::transport::UnboundBuffer* buffer);

 private:
  const std::shared_ptr<TransportControl> parent_;
  std::atomic<bool> interrupted_{false};
  std::atomic<int64_t> sent_bytes_{0};
  Mutex mutex_;
  std::set<::gloo::transport::UnboundBuffer*> buffers_ ABSL_GUARDED_BY(mutex_);
};

// Thrown by a wait that TransportControl interrupted.
class WaitInterrupted : public std::exception {};

// Thrown when sending to or receiving from `peer` failed.
class PeerFailure : public std::runtime_error {
 public:
  PeerFailure(int peer, const std::string& what)
      : std::runtime_error(what), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// Decorates a gloo transport, so that gloo's own algorithms run over buffers
// that report to `control`.
std::shared_ptr<::gloo::transport::Device> WatchDevice(
    std::shared_ptr<::gloo::transport::Device> device,
    std::shared_ptr<TransportControl> control);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_TRANSPORT_H_
