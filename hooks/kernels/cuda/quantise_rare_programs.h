#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_RARE_PROGRAMS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_RARE_PROGRAMS_H_

#include <cstdint>

#include "base/element_type.h"
#include "base/float16.h"
#include "base/host_device.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/quantise_access.h"

// Programs behind hooks/kernels/cuda/quantise.h that steps seldom need: after
// the members or the buckets have changed, and where something is not finite.

namespace coxswain {

// An entry of the table of FoldProgram, which ends as that of QuantiseEntry.
template <typename T>
struct FoldEntry {
  const T* local = nullptr;    // null for zero
  const T* average = nullptr;  // of the elements [begin, end)
  T* to = nullptr;             // may be `local`
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first = 0;  // elements before this entry's
};

// to = local + weight * average.
template <typename T>
struct FoldProgram {
  static constexpr int kThreads = 256;
  struct Shared {};
  struct Thread {};

  const FoldEntry<T>* table;
  int64_t entries;
  T weight;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    const int64_t place = at.block * kThreads + at.thread;
    const int64_t number = FindRun(table, entries, place);
    if (number == entries) return;
    const FoldEntry<T>& entry = table[number];
    const int64_t i = place - entry.first;
    T value = entry.local == nullptr ? T{0} : entry.local[i];
    if (i >= entry.begin && i < entry.end) {
      value += weight * entry.average[i - entry.begin];
    }
    entry.to[i] = value;
  }
};

// flags[i] = whether run i's gradient has an element that is infinite or NaN;
// a block for each run.
struct FlagNonFiniteProgram {
  static constexpr int kThreads = 256;
  struct Shared {
    int32_t found[kThreads];
  };
  struct Thread {};

  const QuantiseEntry* runs;
  ElementType type;
  int32_t* flags;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 2; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    if (phase == 0) {
      shared->found[at.thread] = AnyFor(at) ? 1 : 0;
      return;
    }
    if (at.thread != 0) return;
    int32_t any = 0;
    for (int i = 0; i < kThreads; ++i) any |= shared->found[i];
    flags[at.block] = any;
  }

 private:
  COXSWAIN_HOST_DEVICE bool AnyFor(const BlockPlace& at) const {
    const void* from = runs[at.block].gradient;
    const int64_t count = runs[at.block + 1].first - runs[at.block].first;
    switch (type) {
      case ElementType::kFloat64:
        return AnyOf(static_cast<const uint64_t*>(from), count, at.thread,
                     uint64_t{0x7ff0000000000000});
      case ElementType::kFloat16:
        return AnyOf(static_cast<const uint16_t*>(from), count, at.thread,
                     uint16_t{0x7c00});
      case ElementType::kBFloat16:
        return AnyOf(static_cast<const uint16_t*>(from), count, at.thread,
                     uint16_t{0x7f80});
      default:
        return AnyOf(static_cast<const uint32_t*>(from), count, at.thread,
                     uint32_t{0x7f800000});
    }
  }
  // Returns whether one of a thread's elements has all bits of the exponent
  // set.
  template <typename Bits>
  COXSWAIN_HOST_DEVICE static bool AnyOf(const Bits* from, int64_t count,
                                         int thread, Bits exponent) {
    bool any = false;
    for (int64_t i = thread; i < count; i += kThreads) {
      any = any || (from[i] & exponent) == exponent;
    }
    return any;
  }
};

// by_rank[r] = 0, but of this rank 1 + the number of the first flag that is
// set, or 0. One block.
struct FirstFlagProgram {
  static constexpr int kThreads = 256;
  struct Shared {
    int32_t first[kThreads];
  };
  struct Thread {};

  const int32_t* flags;
  int32_t count;
  int32_t rank;
  int32_t ranks;
  int32_t* by_rank;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 2; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    if (phase == 0) {
      for (int32_t r = at.thread; r < ranks; r += kThreads) {
        if (r != rank) by_rank[r] = 0;
      }
      int32_t i = at.thread;
      while (i < count && flags[i] == 0) i += kThreads;
      shared->first[at.thread] = i;
      return;
    }
    if (at.thread != 0) return;
    int32_t first = count;
    for (int i = 0; i < kThreads; ++i) {
      first = shared->first[i] < first ? shared->first[i] : first;
    }
    by_rank[rank] = first < count ? first + 1 : 0;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_RARE_PROGRAMS_H_
