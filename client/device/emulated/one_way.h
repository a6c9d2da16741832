#ifndef COXSWAIN_CLIENT_DEVICE_EMULATED_ONE_WAY_H_
#define COXSWAIN_CLIENT_DEVICE_EMULATED_ONE_WAY_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace coxswain {

// A number that grows, and threads that wait for it to. For emulated streams.
//
// Who waits sees all that was done before the number grew, but who makes it
// grow sees nothing of those who wait: with a mutex both would, and
// ThreadSanitizer would take an order for given that a GPU does not give.
// Hence Linux's futex, which ThreadSanitizer does not look at, and one atomic,
// which it does.
// Thread-safe.
class OneWay {
 public:
  void Advance();
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  // Returns once value() is not `seen`; false if `timeout` passes before.
  bool AwaitBeyond(uint32_t seen,
                   absl::Duration timeout = absl::InfiniteDuration()) const;

 private:
  std::atomic<uint32_t> value_{0};
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_EMULATED_ONE_WAY_H_
