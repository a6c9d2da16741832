#ifndef COXSWAIN_HOOKS_KERNELS_EVERY_TARGET_H_
#define COXSWAIN_HOOKS_KERNELS_EVERY_TARGET_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "hooks/kernels/parallel.h"

// For the tests of the kernels.

namespace coxswain {

// Calls run() with every instruction set of this CPU and several numbers of
// threads, and puts things back.
template <class Run>
void ForEveryTarget(const Run& run) {
  const std::string before = KernelTarget();
  for (const std::string& target : KernelTargets()) {
    ASSERT_TRUE(UseKernelTarget(target));
    for (const int threads : {1, 2, 3, 8}) {
      SetKernelThreads(threads);
      SCOPED_TRACE(target + " with " + std::to_string(threads) + " threads");
      run();
    }
  }
  SetKernelThreads(1);
  UseKernelTarget(before);
}

// An array that starts `offset` elements past a multiple of 64 bytes, full of
// `poison`, with some more on either side to find writes out of bounds.
template <typename T>
class Guarded {
 public:
  Guarded(int64_t count, int64_t offset, T poison)
      : count_(count),
        poison_(poison),
        values_(static_cast<size_t>(count) + 2 * kGuard, poison) {
    const auto at = reinterpret_cast<uintptr_t>(values_.data()) / sizeof(T);
    const int64_t lanes = 64 / sizeof(T);
    begin_ = kGuard / 2 +
             (2 * lanes - static_cast<int64_t>(at) % lanes) % lanes + offset;
  }
  T* data() { return values_.data() + begin_; }
  int64_t count() const { return count_; }
  std::vector<T> Values() { return std::vector<T>(data(), data() + count_); }
  void Fill(const std::vector<T>& from) {
    std::copy(from.begin(), from.end(), data());
  }
  // Returns whether what lies around is as it was.
  bool IsIntact() {
    for (int64_t i = 0; i < static_cast<int64_t>(values_.size()); ++i) {
      if (i >= begin_ && i < begin_ + count_) continue;
      if (std::memcmp(&values_[static_cast<size_t>(i)], &poison_, sizeof(T))) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 128;
  const int64_t count_;
  const T poison_;
  std::vector<T> values_;
  int64_t begin_ = 0;
};

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() ||
          std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
std::vector<T> Normals(uint64_t stream, int64_t count) {
  const CounterRandom random(1, stream);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(random.Normal(static_cast<uint64_t>(i))));
  }
  return values;
}

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_EVERY_TARGET_H_
