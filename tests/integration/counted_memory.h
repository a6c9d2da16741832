#ifndef COXSWAIN_TESTS_INTEGRATION_COUNTED_MEMORY_H_
#define COXSWAIN_TESTS_INTEGRATION_COUNTED_MEMORY_H_

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/held/held_communicator.h"

namespace coxswain::torch {

// For tests: what each of several ranks in one process holds, of libtorch's
// tensors and of a back end's buffers.

// What one rank holds. Thread-safe.
class Ledger {
 public:
  void Add(int64_t bytes) {
    MutexLock lock(&mutex_);
    bytes_ += bytes;
    peak_ = std::max(peak_, bytes_);
    if (bytes < 0) freed_.NotifyAll();
  }
  // Waits for other threads to free what they still hold. Returns whether it is
  // no more than this.
  bool AwaitAtMost(int64_t bytes, absl::Duration timeout) {
    MutexLock lock(&mutex_);
    return freed_.WaitFor(
        &mutex_, timeout,
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return bytes_ <= bytes; });
  }
  // The peak is that from now on.
  void BeginPeak() {
    MutexLock lock(&mutex_);
    peak_ = bytes_;
  }
  int64_t bytes() const {
    MutexLock lock(&mutex_);
    return bytes_;
  }
  int64_t peak() const {
    MutexLock lock(&mutex_);
    return peak_;
  }

 private:
  mutable Mutex mutex_;
  CondVar freed_;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Returns the ledger of the rank that this thread trains; null: nothing that
// the thread makes is counted.
std::shared_ptr<Ledger>& OwnLedger();

// While one lives, the bytes of libtorch's tensors on the CPU are entered into
// the ledger of the thread that makes them.
class CountedTensors {
 public:
  CountedTensors();
  ~CountedTensors();
  CountedTensors(const CountedTensors&) = delete;
  CountedTensors& operator=(const CountedTensors&) = delete;

 private:
  c10::Allocator* const before_;
};

// Enters what a back end's buffers take.
class CountingCommunicator : public HeldCommunicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner,
                       std::shared_ptr<Ledger> ledger);
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override;

 private:
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_TESTS_INTEGRATION_COUNTED_MEMORY_H_
