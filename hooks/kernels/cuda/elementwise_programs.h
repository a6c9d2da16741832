#ifndef COXSWAIN_HOOKS_KERNELS_CUDA_ELEMENTWISE_PROGRAMS_H_
#define COXSWAIN_HOOKS_KERNELS_CUDA_ELEMENTWISE_PROGRAMS_H_

#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "client/device/elements.h"
#include "client/device/launch.h"

// The programs (client/device/launch.h) behind elementwise.h. Bits as those of
// hooks/kernels/elementwise.h, which is their oracle.

namespace coxswain {

// kCount elements from memory; if `aligned`, `from` is a multiple of 16 bytes.
template <int kCount, typename T>
COXSWAIN_HOST_DEVICE inline void LoadRun(const T* from, bool aligned, T* to) {
  static_assert(kCount % kVector<T> == 0);
  if (aligned) {
    for (int i = 0; i < kCount; i += kVector<T>) {
#ifdef __CUDA_ARCH__
      // The compiler would cut some of them into pieces.
      const uint4 moved = __ldcg(reinterpret_cast<const uint4*>(from + i));
#else
      const auto moved = Pack<T, kVector<T>>::Load(from + i);
#endif
      memcpy(to + i, &moved, sizeof(moved));
    }
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = from[i];
  }
}

// `to` is a multiple of 16 bytes.
template <int kCount, typename T>
COXSWAIN_HOST_DEVICE inline void StoreRun(const T* from, T* to) {
  static_assert(kCount % kVector<T> == 0);
  for (int i = 0; i < kCount; i += kVector<T>) {
#ifdef __CUDA_ARCH__
    uint4 moved;
    memcpy(&moved, from + i, sizeof(moved));
    __stcg(reinterpret_cast<uint4*>(to + i), moved);
#else
    Pack<T, kVector<T>> moved;
    memcpy(&moved, from + i, sizeof(moved));
    moved.Store(to + i);
#endif
  }
}

// How an array is cut: `head` single elements up to where the output is at a
// multiple of 16 bytes, then groups of kGroup, then the single ones left.
struct Stretch {
  int64_t count = 0;
  int64_t head = 0;
  int64_t groups = 0;
  bool in_aligned = false;  // the first group of the input is, too
  bool other_aligned = false;
};

// Bodies of ElementwiseProgram: what is done to kGroup elements from `first`
// on, in two parts so that the loads of several groups are on their way at the
// same time, and to a single one.

// out[i] = narrow(in[i] * scale).
template <typename T, class Element>
struct NarrowBody {
  static constexpr int kGroup = 8;
  struct Loaded {
    T in[kGroup];
  };
  const T* in;
  uint16_t* out;
  T scale;

  COXSWAIN_HOST_DEVICE uint16_t Of(T value) const {
    return Element::Narrow(ToFloatForRounding(value * scale));
  }
  COXSWAIN_HOST_DEVICE void Load(const Stretch& stretch, int64_t first,
                                 Loaded* loaded) const {
    LoadRun<kGroup>(in + first, stretch.in_aligned, loaded->in);
  }
  COXSWAIN_HOST_DEVICE void Store(int64_t first, const Loaded& loaded) const {
    uint16_t narrow[kGroup];
    for (int i = 0; i < kGroup; ++i) narrow[i] = Of(loaded.in[i]);
    StoreRun<kGroup>(narrow, out + first);
  }
  COXSWAIN_HOST_DEVICE void One(int64_t i) const { out[i] = Of(in[i]); }
};

// out[i] = in[i], exactly.
template <typename T, class Element>
struct WidenBody {
  static constexpr int kGroup = 8;
  struct Loaded {
    uint16_t in[kGroup];
  };
  const uint16_t* in;
  T* out;

  COXSWAIN_HOST_DEVICE void Load(const Stretch& stretch, int64_t first,
                                 Loaded* loaded) const {
    LoadRun<kGroup>(in + first, stretch.in_aligned, loaded->in);
  }
  COXSWAIN_HOST_DEVICE void Store(int64_t first, const Loaded& loaded) const {
    T wide[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      wide[i] = static_cast<T>(Element::Widen(loaded.in[i]));
    }
    StoreRun<kGroup>(wide, out + first);
  }
  COXSWAIN_HOST_DEVICE void One(int64_t i) const {
    out[i] = static_cast<T>(Element::Widen(in[i]));
  }
};

// values[i] = values[i] / divisor.
template <class Element>
struct DivideBody {
  using Stored = typename Element::Stored;
  static constexpr int kGroup = kVector<Stored>;
  struct Loaded {
    Stored values[kGroup];
  };
  Stored* values;
  typename Element::Value divisor;

  COXSWAIN_HOST_DEVICE Stored Of(Stored value) const {
    return Element::Narrow(Element::Widen(value) / divisor);
  }
  COXSWAIN_HOST_DEVICE void Load(const Stretch&, int64_t first,
                                 Loaded* loaded) const {
    LoadRun<kGroup>(values + first, true, loaded->values);
  }
  COXSWAIN_HOST_DEVICE void Store(int64_t first, const Loaded& loaded) const {
    Stored result[kGroup];
    for (int i = 0; i < kGroup; ++i) result[i] = Of(loaded.values[i]);
    StoreRun<kGroup>(result, values + first);
  }
  COXSWAIN_HOST_DEVICE void One(int64_t i) const { values[i] = Of(values[i]); }
};

// values[i] += other[i].
template <typename T>
struct AddBody {
  static constexpr int kGroup = kVector<T>;
  struct Loaded {
    T values[kGroup];
    T other[kGroup];
  };
  T* values;
  const T* other;

  COXSWAIN_HOST_DEVICE void Load(const Stretch& stretch, int64_t first,
                                 Loaded* loaded) const {
    LoadRun<kGroup>(values + first, true, loaded->values);
    LoadRun<kGroup>(other + first, stretch.other_aligned, loaded->other);
  }
  COXSWAIN_HOST_DEVICE void Store(int64_t first, const Loaded& loaded) const {
    T sum[kGroup];
    for (int i = 0; i < kGroup; ++i)
      sum[i] = loaded.values[i] + loaded.other[i];
    StoreRun<kGroup>(sum, values + first);
  }
  COXSWAIN_HOST_DEVICE void One(int64_t i) const { values[i] += other[i]; }
};

// out[i] = in[i], bit by bit.
template <typename T>
struct CopyBody {
  static constexpr int kGroup = kVector<T>;
  struct Loaded {
    T in[kGroup];
  };
  const T* in;
  T* out;

  COXSWAIN_HOST_DEVICE void Load(const Stretch& stretch, int64_t first,
                                 Loaded* loaded) const {
    LoadRun<kGroup>(in + first, stretch.in_aligned, loaded->in);
  }
  COXSWAIN_HOST_DEVICE void Store(int64_t first, const Loaded& loaded) const {
    StoreRun<kGroup>(loaded.in, out + first);
  }
  COXSWAIN_HOST_DEVICE void One(int64_t i) const { out[i] = in[i]; }
};

// out[i] = value.
template <typename T>
struct FillBody {
  static constexpr int kGroup = kVector<T>;
  struct Loaded {};
  T* out;
  T value;

  COXSWAIN_HOST_DEVICE void Load(const Stretch&, int64_t, Loaded*) const {}
  COXSWAIN_HOST_DEVICE void Store(int64_t first, const Loaded&) const {
    T filled[kGroup];
    for (int i = 0; i < kGroup; ++i) filled[i] = value;
    StoreRun<kGroup>(filled, out + first);
  }
  COXSWAIN_HOST_DEVICE void One(int64_t i) const { out[i] = value; }
};

// Does a body to all elements of a stretch: block by block, and on from where
// the blocks end while there are groups left.
template <class Body>
struct ElementwiseProgram {
  static constexpr int kThreads = 256;
  // Groups of one thread that are loaded before the first is stored: 64 bytes.
  static constexpr int kInFlight =
      sizeof(typename Body::Loaded) >= 64
          ? 1
          : 64 / static_cast<int>(sizeof(typename Body::Loaded) < 16
                                      ? 16
                                      : sizeof(typename Body::Loaded));
  static constexpr int64_t kGroupsOfBlock = int64_t{kThreads} * kInFlight;
  struct Shared {};
  struct Thread {};

  Body body;
  Stretch stretch;

  COXSWAIN_HOST_DEVICE constexpr int phases() const { return 1; }

  COXSWAIN_HOST_DEVICE void Run(int, const BlockPlace& at, Thread*,
                                Shared*) const {
    for (int64_t begin = at.block * kGroupsOfBlock; begin < stretch.groups;
         begin += at.blocks * kGroupsOfBlock) {
      RunGroups(begin + at.thread);
    }
    if (at.block == 0) RunEnds(at.thread);
  }

  COXSWAIN_HOST_DEVICE void RunGroups(int64_t begin) const {
    typename Body::Loaded loaded[kInFlight];
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t group = begin + int64_t{k} * kThreads;
      if (group < stretch.groups) body.Load(stretch, First(group), &loaded[k]);
    }
    for (int k = 0; k < kInFlight; ++k) {
      const int64_t group = begin + int64_t{k} * kThreads;
      if (group < stretch.groups) body.Store(First(group), loaded[k]);
    }
  }

  // Either end has fewer single elements than a group.
  COXSWAIN_HOST_DEVICE void RunEnds(int thread) const {
    if (thread < stretch.head) body.One(thread);
    const int64_t last = First(stretch.groups) + thread;
    if (last < stretch.count) body.One(last);
  }

  COXSWAIN_HOST_DEVICE int64_t First(int64_t group) const {
    return stretch.head + group * Body::kGroup;
  }
};

// A part of an array.
struct ElementRange {
  int64_t offset = 0;
  int64_t count = 0;
};

// The sum of a block's numbers, by a tree: phases 1 to kPhases - 1 after each
// thread has put its own into `found`.
template <int kCount>
struct TreeOfBlock {
  static constexpr int kPhases = kCount == 256 ? 9 : 0;
  static_assert(kPhases > 0);
  static COXSWAIN_HOST_DEVICE void Add(int phase, int thread, int64_t* found) {
    const int width = kCount >> phase;
    if (thread < width) found[thread] += found[thread + width];
  }
};

// partials[r * parts + p] = how many of part p of range r are not finite;
// a block for each.
template <class Element>
struct CountNonFiniteProgram {
  using Stored = typename Element::Stored;
  static constexpr int kThreads = 256;
  static constexpr int kInFlight = 4;
  using Tree = TreeOfBlock<kThreads>;
  struct Shared {
    int64_t found[kThreads];
  };
  struct Thread {};

  const Stored* values;
  const ElementRange* ranges;
  int64_t parts;
  int64_t* partials;

  COXSWAIN_HOST_DEVICE constexpr int phases() const {
    return Tree::kPhases + 1;
  }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    if (phase == 0) {
      shared->found[at.thread] =
          Count(ranges[at.block / parts], at.block % parts, at.thread);
    } else if (phase < Tree::kPhases) {
      Tree::Add(phase, at.thread, shared->found);
    } else if (at.thread == 0) {
      partials[at.block] = shared->found[0];
    }
  }

  COXSWAIN_HOST_DEVICE int64_t Count(const ElementRange& range, int64_t part,
                                     int thread) const {
    int64_t found = 0;
    const Stored* const of_range = values + range.offset;
    constexpr int64_t kStep = int64_t{kThreads} * kInFlight;
    for (int64_t begin = part * kStep + thread; begin < range.count;
         begin += parts * kStep) {
      Stored loaded[kInFlight];
      for (int k = 0; k < kInFlight; ++k) {
        const int64_t i = begin + int64_t{k} * kThreads;
        loaded[k] = i < range.count ? of_range[i] : Stored{0};
      }
      for (int k = 0; k < kInFlight; ++k) {
        found += Element::IsFinite(loaded[k]) ? 0 : 1;
      }
    }
    return found;
  }
};

// counts[r] = the sum of partials[r * parts] to partials[r * parts + parts -
// 1]; a block for each range.
struct SumPartialsProgram {
  static constexpr int kThreads = 256;
  using Tree = TreeOfBlock<kThreads>;
  struct Shared {
    int64_t found[kThreads];
  };
  struct Thread {};

  const int64_t* partials;
  int64_t parts;
  int64_t* counts;

  COXSWAIN_HOST_DEVICE constexpr int phases() const {
    return Tree::kPhases + 1;
  }

  COXSWAIN_HOST_DEVICE void Run(int phase, const BlockPlace& at, Thread*,
                                Shared* shared) const {
    if (phase == 0) {
      int64_t sum = 0;
      for (int64_t p = at.thread; p < parts; p += kThreads) {
        sum += partials[at.block * parts + p];
      }
      shared->found[at.thread] = sum;
    } else if (phase < Tree::kPhases) {
      Tree::Add(phase, at.thread, shared->found);
    } else if (at.thread == 0) {
      counts[at.block] = shared->found[0];
    }
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_CUDA_ELEMENTWISE_PROGRAMS_H_
