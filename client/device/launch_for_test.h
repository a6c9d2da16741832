#ifndef COXSWAIN_CLIENT_DEVICE_LAUNCH_FOR_TEST_H_
#define COXSWAIN_CLIENT_DEVICE_LAUNCH_FOR_TEST_H_

#include <cstdint>

#include "base/host_device.h"
#include "client/device/launch.h"

namespace coxswain {

// For tests: the sum of each block's 64 numbers, by a tree of barriers.
struct SumOfBlock {
  static constexpr int kThreads = 64;
  struct Shared {
    float partial[kThreads];
  };
  struct Thread {
    float own;
  };

  const float* values;
  float* sums;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 8; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread* thread,
                                Shared* shared) const {
    if (phase == 0) {
      thread->own = values[at.block * kThreads + at.thread];
      shared->partial[at.thread] = thread->own;
      return;
    }
    if (phase == 7) {
      if (at.thread == 0) sums[at.block] = shared->partial[0];
      return;
    }
    const int width = kThreads >> phase;
    if (at.thread >= width) return;
    thread->own += shared->partial[at.thread + width];
    shared->partial[at.thread] = thread->own;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_LAUNCH_FOR_TEST_H_
