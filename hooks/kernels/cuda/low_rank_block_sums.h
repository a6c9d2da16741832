#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_BLOCK_SUMS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_BLOCK_SUMS_H_

#include <cstdint>

#include "base/host_device.h"

// Before a loop whose counter indexes an array that has to stay in registers.
// For the GPU only: hosts' compilers warn of pragmas that they do not know.
#ifdef __CUDA_ARCH__
#define COXSWAIN_UNROLL _Pragma("unroll")
#define COXSWAIN_UNROLL_4 _Pragma("unroll 4")
#else
#define COXSWAIN_UNROLL
#define COXSWAIN_UNROLL_4
#endif

namespace coxswain {

// Threads of a block, of all programs of low_rank.h and orthogonalise.h.
constexpr int kLowRankThreads = 256;

constexpr int64_t CeilOf(int64_t a, int64_t b) { return (a + b - 1) / b; }

// kValues numbers of each thread, of which those of sets of threads are added
// up, in two phases with a barrier between them: runs of up to kRun, then the
// runs, each in order.
template <typename T, int kValues>
struct BlockSums {
  static constexpr int kRun = 8;
  // So that runs begin in different banks.
  static COXSWAIN_HOST_DEVICE int Padded(int thread) {
    return thread + thread / 32;
  }
  T at[kValues][kLowRankThreads + 8];

  COXSWAIN_HOST_DEVICE void Put(int value, int thread, T number) {
    at[value][Padded(thread)] = number;
  }

  // Which threads make a set.
  struct Sets {
    int length;       // threads of a set, a power of two
    bool interleave;  // every sets()-th thread, or neighbours
    COXSWAIN_HOST_DEVICE int sets() const { return kLowRankThreads / length; }
    COXSWAIN_HOST_DEVICE int Thread(int set, int i) const {
      return interleave ? i * sets() + set : set * length + i;
    }
    COXSWAIN_HOST_DEVICE int run() const {
      return length < kRun ? length : kRun;
    }
  };

  COXSWAIN_HOST_DEVICE void SumRuns(const Sets& sets, int thread) {
    const int run = sets.run();
    const int runs = sets.length / run;
    const int items = sets.sets() * runs;  // of each value, <= 256
    for (int item = thread; item < kValues * items; item += kLowRankThreads) {
      T* const row = at[item / items];
      const int set = item % items % sets.sets();
      const int begin = item % items / sets.sets() * run;
      T sum = row[Padded(sets.Thread(set, begin))];
      for (int i = 1; i < run; ++i) {
        sum += row[Padded(sets.Thread(set, begin + i))];
      }
      row[Padded(sets.Thread(set, begin))] = sum;
    }
  }
  // After a barrier.
  COXSWAIN_HOST_DEVICE T SumOf(const Sets& sets, int value, int set) const {
    T sum = at[value][Padded(sets.Thread(set, 0))];
    for (int i = sets.run(); i < sets.length; i += sets.run()) {
      sum += at[value][Padded(sets.Thread(set, i))];
    }
    return sum;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_LOW_RANK_BLOCK_SUMS_H_
