#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_PROGRAMS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_PROGRAMS_H_

#include <cstdint>
#include <cstring>

#include "base/float16.h"
#include "base/host_device.h"
#include "client/device/launch.h"
#include "hooks/kernels/cuda/quantise_access.h"

// The programs behind hooks/kernels/cuda/quantise.h, which defines what they
// compute. Whatever a thread reads it keeps until it has written what comes of
// it, so each byte moves once. Results do not depend on the order of threads.

namespace coxswain {

// The arithmetic of hooks/kernels/quantise.h for one element, on the CPU and on
// a GPU alike. To be compiled without contraction to fused multiply-adds.

template <typename T>
struct QuantiseConstants;
// kRound is 1.5 * 2^23, or 2^52: adding it rounds to an integer, which then
// stands in the lowest bits.
template <>
struct QuantiseConstants<float> {
  using Bits = uint32_t;
  static constexpr Bits kMagnitude = 0x7fffffff;
  static constexpr float kRound = 0x1.8p23f;
};
template <>
struct QuantiseConstants<double> {
  using Bits = uint64_t;
  static constexpr Bits kMagnitude = 0x7fffffffffffffff;
  static constexpr double kRound = 0x1.8p52;
};

// Without their signs floats order as these do, an infinity and the NaNs
// coming last.
template <typename T>
COXSWAIN_HOST_DEVICE typename QuantiseConstants<T>::Bits MagnitudeBits(
    T value) {
  typename QuantiseConstants<T>::Bits bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & QuantiseConstants<T>::kMagnitude;
}

COXSWAIN_HOST_DEVICE inline bool IsFiniteScale(float scale) {
  return (FloatBits(scale) & 0x7f800000u) != 0x7f800000u;
}

// Returns the scale of a block whose largest magnitude has these bits.
template <typename T>
COXSWAIN_HOST_DEVICE float QuantisedScale(
    typename QuantiseConstants<T>::Bits largest_bits) {
  T largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  const float scale = static_cast<float>(largest / T{127});
  // 127 times a scale that was rounded up may overflow.
  if (!IsFiniteScale(scale * 127.0f)) return FloatFromBits(0x7fc00000u);
  return scale < 0x1p-126f ? 0.0f : scale;
}

// Takes the code out of x, and returns it.
template <typename T>
COXSWAIN_HOST_DEVICE uint8_t EncodeElement(T* x, T inverse, T scale) {
  constexpr T kRound = QuantiseConstants<T>::kRound;
  const T rounded = *x * inverse + kRound;
  typename QuantiseConstants<T>::Bits bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  *x -= (rounded - kRound) * scale;
  return static_cast<uint8_t>(bits);
}

template <typename T>
COXSWAIN_HOST_DEVICE T DecodeElement(uint8_t code, T scale) {
  return static_cast<T>(static_cast<int8_t>(code)) * scale;
}

// A thread's elements of one block.
struct QuantisePlace {
  int64_t block = 0;
  int64_t from = 0;  // of the block's first element in its run
  int lane = 0;
};

// Where the elements come from that an error is added to: the runs' gradients.
template <class Element>
struct GradientSource {
  using T = typename Element::Value;
  using Stored = typename Element::Stored;

  COXSWAIN_HOST_DEVICE bool CanLoadFour(const QuantiseEntry& run,
                                        int64_t offset) const {
    return Four<Stored>::FitsAt(static_cast<const Stored*>(run.gradient) +
                                offset);
  }
  COXSWAIN_HOST_DEVICE void LoadAll(const QuantiseEntry& run,
                                    const QuantiseGrid& grid,
                                    const QuantisePlace& place, T* x) const {
    const Stored* from = static_cast<const Stored*>(run.gradient) + place.from;
    for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
      const int64_t begin = grid.ChunkOf(place.lane, chunk);
      if (begin >= grid.size) continue;
      const auto four = Four<Stored>::Load(from + begin);
      for (int i = 0; i < 4; ++i) x[4 * chunk + i] = Element::Widen(four.at[i]);
    }
  }
  COXSWAIN_HOST_DEVICE T LoadOne(const QuantiseEntry& run, int64_t offset,
                                 const QuantiseGrid&, int64_t, int64_t) const {
    return Element::Widen(static_cast<const Stored*>(run.gradient)[offset]);
  }
};

// The same: the mean of quantised arrays.
template <typename Computed>
struct MeanSource {
  using T = Computed;
  const uint8_t* in;
  int64_t stride;
  int ranks;

  COXSWAIN_HOST_DEVICE bool CanLoadFour(const QuantiseEntry&, int64_t) const {
    return true;
  }
  COXSWAIN_HOST_DEVICE void LoadAll(const QuantiseEntry&,
                                    const QuantiseGrid& grid,
                                    const QuantisePlace& place, T* x) const {
    const uint8_t* block = in + grid.BytesBefore(place.block);
    for (int rank = 0; rank < ranks; ++rank, block += stride) {
      const T scale = static_cast<T>(LoadScale(block));
      for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
        const int64_t begin = grid.ChunkOf(place.lane, chunk);
        if (begin >= grid.size) continue;
        const Four<uint8_t> codes = LoadCodes(block + 4 + begin, 4);
        for (int i = 0; i < 4; ++i) {
          const T value = DecodeElement(codes.at[i], scale);
          T* sum = x + 4 * chunk + i;
          *sum = rank == 0 ? value : *sum + value;
        }
      }
    }
    if (ranks == 1) return;
    for (int i = 0; i < QuantiseGrid::kHeld; ++i) x[i] /= static_cast<T>(ranks);
  }
  COXSWAIN_HOST_DEVICE T LoadOne(const QuantiseEntry&, int64_t,
                                 const QuantiseGrid& grid, int64_t block,
                                 int64_t element) const {
    const uint8_t* from = in + grid.BytesBefore(block);
    T sum = 0;
    for (int rank = 0; rank < ranks; ++rank, from += stride) {
      const T value =
          DecodeElement(from[4 + element], static_cast<T>(LoadScale(from)));
      sum = rank == 0 ? value : sum + value;
    }
    return ranks == 1 ? sum : sum / static_cast<T>(ranks);
  }
};

// X = source + error to codes; the remainder is kept.
template <class Source>
struct QuantiseProgram {
  using T = typename Source::T;
  using Bits = typename QuantiseConstants<T>::Bits;
  static constexpr int kThreads = QuantiseGrid::kThreads;
  static constexpr int kFew = 16;
  struct Shared {
    Bits largest[kThreads];  // of each thread's elements
    Bits fewer[kThreads];    // of a block's, in its first kFew
  };
  struct Thread {
    T x[QuantiseGrid::kHeld];
  };

  Source source;
  const QuantiseEntry* runs;
  int64_t entries;
  QuantiseGrid grid;
  uint8_t* out;
  int32_t* clear;  // set to 0 unless null

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 3; }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread* thread,
                                Shared* shared) const {
    const int64_t block = grid.BlockOf(at);
    const int lane = grid.LaneOf(at);
    const int first = at.thread - lane;
    if (phase == 0) {
      if (clear != nullptr && at.block == 0 && at.thread == 0) *clear = 0;
      for (int i = 0; i < QuantiseGrid::kHeld; ++i) thread->x[i] = T{0};
      if (block < grid.blocks) Load(block, lane, thread->x);
      shared->largest[at.thread] = LargestOf(thread->x);
    } else if (phase == 1) {
      if (grid.lanes() <= kFew || lane >= kFew) return;
      Bits largest = 0;
      for (int i = lane; i < grid.lanes(); i += kFew) {
        largest = Larger(largest, shared->largest[first + i]);
      }
      shared->fewer[at.thread] = largest;
    } else if (block < grid.blocks) {
      const bool few = grid.lanes() <= kFew;
      const Bits* from = (few ? shared->largest : shared->fewer) + first;
      Bits largest = 0;
      for (int i = 0; i < (few ? grid.lanes() : kFew); ++i) {
        largest = Larger(largest, from[i]);
      }
      Store(block, lane, QuantisedScale<T>(largest), thread->x);
    }
  }

 private:
  COXSWAIN_HOST_DEVICE static Bits Larger(Bits a, Bits b) {
    return a > b ? a : b;
  }
  COXSWAIN_HOST_DEVICE static Bits LargestOf(const T* x) {
    Bits largest = 0;
    for (int i = 0; i < QuantiseGrid::kHeld; ++i) {
      largest = Larger(largest, MagnitudeBits(x[i]));
    }
    return largest;
  }

  // Whether all of the block lies in one run, where four elements are moved at
  // a time. Sets the place and the run.
  COXSWAIN_HOST_DEVICE bool IsWhole(int64_t block, int lane,
                                    QuantisePlace* place, int64_t* run) const {
    const int64_t begin = block * grid.size;
    *run = FindRun(runs, entries, begin);
    if (*run == entries || begin + grid.size > runs[*run + 1].first ||
        grid.size % 4 != 0) {
      return false;
    }
    const QuantiseEntry& entry = runs[*run];
    place->block = block;
    place->lane = lane;
    place->from = begin - entry.first;
    return source.CanLoadFour(entry, place->from) &&
           Four<T>::FitsAt(static_cast<const T*>(entry.error) + place->from) &&
           Four<T>::FitsAt(static_cast<const T*>(entry.remainder) +
                           place->from);
  }

  // Where element `at`, of the block's element `element`, lies in a run, from
  // which the search goes on; false if there is none.
  COXSWAIN_HOST_DEVICE bool Locate(int64_t at, int64_t element, int64_t* run,
                                   int64_t* offset) const {
    if (element >= grid.size || at >= runs[entries].first) return false;
    while (at >= runs[*run + 1].first) ++*run;
    *offset = at - runs[*run].first;
    return true;
  }

  COXSWAIN_HOST_DEVICE void Load(int64_t block, int lane, T* x) const {
    QuantisePlace place;
    int64_t run = 0;
    if (IsWhole(block, lane, &place, &run)) {
      source.LoadAll(runs[run], grid, place, x);
      const T* error = static_cast<const T*>(runs[run].error);
      if (error != nullptr) AddAll(error + place.from, lane, x);
      return;
    }
    LoadEach(block, lane, x);
  }

  COXSWAIN_HOST_DEVICE void LoadEach(int64_t block, int lane, T* x) const {
    for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
      const int64_t begin = grid.ChunkOf(lane, chunk);
      const int64_t at = block * grid.size + begin;
      int64_t run = FindRun(runs, entries, at);
      int64_t offset = 0;
      for (int i = 0; i < 4; ++i) {
        if (!Locate(at + i, begin + i, &run, &offset)) continue;
        const T* error = static_cast<const T*>(runs[run].error);
        T value = source.LoadOne(runs[run], offset, grid, block, begin + i);
        if (error != nullptr) value += error[offset];
        x[4 * chunk + i] = value;
      }
    }
  }

  COXSWAIN_HOST_DEVICE void AddAll(const T* error, int lane, T* x) const {
    for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
      const int64_t begin = grid.ChunkOf(lane, chunk);
      if (begin >= grid.size) continue;
      const auto four = Four<T>::Load(error + begin);
      for (int i = 0; i < 4; ++i) x[4 * chunk + i] += four.at[i];
    }
  }

  COXSWAIN_HOST_DEVICE void Store(int64_t block, int lane, float scale,
                                  T* x) const {
    uint8_t* to = out + grid.BytesBefore(block);
    if (lane == 0) StoreScale(scale, to);
    Encode(lane, static_cast<T>(scale), x, to + 4);
    QuantisePlace place;
    int64_t run = 0;
    if (IsWhole(block, lane, &place, &run)) {
      T* rest = static_cast<T*>(runs[run].remainder);
      if (rest != nullptr) StoreAll(x, lane, rest + place.from);
      return;
    }
    StoreEach(x, block, lane);
  }

  // Leaves in x what the codes leave out. Without a scale all codes are 0.
  COXSWAIN_HOST_DEVICE void Encode(int lane, T scale, T* x,
                                   uint8_t* codes) const {
    const T inverse = T{1} / scale;
    for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
      const int64_t begin = grid.ChunkOf(lane, chunk);
      Four<uint8_t> four;
      for (int i = 0; i < 4; ++i) {
        T* value = x + 4 * chunk + i;
        four.at[i] =
            scale > T{0} ? EncodeElement(value, inverse, scale) : uint8_t{0};
      }
      StoreCodes(four, grid.size - begin, codes + begin);
    }
  }

  COXSWAIN_HOST_DEVICE void StoreEach(const T* x, int64_t block,
                                      int lane) const {
    for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
      const int64_t begin = grid.ChunkOf(lane, chunk);
      const int64_t at = block * grid.size + begin;
      int64_t run = FindRun(runs, entries, at);
      int64_t offset = 0;
      for (int i = 0; i < 4; ++i) {
        if (!Locate(at + i, begin + i, &run, &offset)) continue;
        T* rest = static_cast<T*>(runs[run].remainder);
        if (rest != nullptr) rest[offset] = x[4 * chunk + i];
      }
    }
  }

  COXSWAIN_HOST_DEVICE void StoreAll(const T* x, int lane, T* rest) const {
    for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
      const int64_t begin = grid.ChunkOf(lane, chunk);
      if (begin >= grid.size) continue;
      Four<T> four;
      for (int i = 0; i < 4; ++i) four.at[i] = x[4 * chunk + i];
      four.Store(rest + begin);
    }
  }
};

// The first `count` elements, unless *skip is set.
template <class Element>
struct DequantiseProgram {
  using T = typename Element::Value;
  using Stored = typename Element::Stored;
  static constexpr int kThreads = QuantiseGrid::kThreads;
  struct Shared {};
  struct Thread {};

  const uint8_t* in;
  QuantiseGrid grid;
  int64_t count;
  Stored* out;
  const int32_t* skip;  // may be null

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    const int64_t block = grid.BlockOf(at);
    if (block >= grid.blocks || (skip != nullptr && *skip != 0)) return;
    const uint8_t* from = in + grid.BytesBefore(block);
    const T scale = static_cast<T>(LoadScale(from));
    const int lane = grid.LaneOf(at);
    for (int chunk = 0; chunk < QuantiseGrid::kChunks; ++chunk) {
      const int64_t begin = grid.ChunkOf(lane, chunk);
      const int64_t place = block * grid.size + begin;
      const int64_t of_block = grid.size - begin;
      const int64_t of_all = count - place;
      const int64_t some = of_block < of_all ? of_block : of_all;
      if (some <= 0) continue;
      const Four<uint8_t> codes = LoadCodes(from + 4 + begin, some);
      Four<Stored> four;
      for (int i = 0; i < 4; ++i) {
        four.at[i] = Element::Narrow(DecodeElement(codes.at[i], scale));
      }
      Put(four, some, out + place);
    }
  }

 private:
  COXSWAIN_HOST_DEVICE static void Put(const Four<Stored>& four, int64_t some,
                                       Stored* to) {
    if (some >= 4 && Four<Stored>::FitsAt(to)) return four.Store(to);
    for (int i = 0; i < 4; ++i) {
      if (i < some) to[i] = four.at[i];
    }
  }
};

// *found = 1 if a block's scale is not finite; all threads that find one write
// the same.
struct FindBadScaleProgram {
  static constexpr int kThreads = 256;
  struct Shared {};
  struct Thread {};

  const uint8_t* in;
  QuantiseGrid grid;
  int32_t* found;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    const int64_t block = at.block * kThreads + at.thread;
    if (block >= grid.blocks) return;
    if (!IsFiniteScale(LoadScale(in + grid.BytesBefore(block)))) *found = 1;
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_QUANTISE_PROGRAMS_H_
