#ifndef COXSWAIN_CLIENT_COMM_BACK_END_H_
#define COXSWAIN_CLIENT_COMM_BACK_END_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/cancel_signal.h"
#include "client/comm/communicator.h"

// What back ends have in common.

namespace coxswain {

// For back ends that connect through a store: fails with INVALID_ARGUMENT if
// the options are not valid.
absl::Status CheckGroupOptions(const CommunicatorOptions& options,
                               absl::string_view backend);

// For back ends of the CPU: fails with INVALID_ARGUMENT unless `span` is in its
// memory.
absl::Status CheckOnHost(const Communicator& comm, const Span& span);

// Returns the options of a communicator of these ranks of `parent`, this rank
// among them: the `number`-th of that list. Its id is one of its own.
CommunicatorOptions SplitOptions(const CommunicatorOptions& parent,
                                 const std::vector<int>& ranks, int64_t number);

// Returns what an error number of the system's sockets means:
// RESOURCE_EXHAUSTED where there is no more of something, else UNAVAILABLE.
absl::Status SocketError(absl::string_view what, int error);

// Counts the bytes that a communicator moved; those of one that was split off
// count for its parent too. Thread-safe.
class ByteCounter {
 public:
  explicit ByteCounter(std::shared_ptr<ByteCounter> parent)
      : parent_(std::move(parent)) {}

  void Add(int64_t bytes) {
    for (ByteCounter* one = this; one != nullptr; one = one->parent_.get()) {
      one->bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
  }
  int64_t bytes() const { return bytes_.load(); }

 private:
  const std::shared_ptr<ByteCounter> parent_;
  std::atomic<int64_t> bytes_{0};
};

// Ties a communicator to the one that it was split off, for back ends: when
// the parent's signal is raised, because the parent was aborted, failed or was
// destroyed, the child is aborted with the parent's reason. At once if the
// parent has ended already.
//
// The child holds it as its last member, so that it is destroyed first: the
// destructor waits for an abort in progress, and none begins after it. So it
// must not be destroyed by a callback of a Work.
class SplitLink {
 public:
  // `parent` is raised by the parent when it ends. `abort` ends the child, and
  // may be called from any thread.
  SplitLink(std::shared_ptr<CancelSignal> parent,
            std::function<void(absl::string_view reason)> abort);
  ~SplitLink();
  SplitLink(const SplitLink&) = delete;
  SplitLink& operator=(const SplitLink&) = delete;

 private:
  struct Target;

  const std::shared_ptr<CancelSignal> parent_;
  const std::shared_ptr<Target> target_;
  uint64_t id_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_BACK_END_H_
