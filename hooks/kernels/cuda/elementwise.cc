#include "hooks/kernels/cuda/elementwise.h"

#include <algorithm>
#include <limits>

#include "client/device/elements.h"

namespace coxswain {
namespace {

// Blocks beyond this go round: twice what a GPU of 132 multiprocessors, with 8
// blocks each, runs at a time.
constexpr int64_t kMostBlocks = 2112;

bool IsAligned(uintptr_t at) { return at % kMovedBytes == 0; }

template <typename T>
uintptr_t AddressOf(T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

template <class Body>
void LaunchElementwise(LaunchTarget* target, const Stretch& stretch,
                       const Body& body) {
  using Program = ElementwiseProgram<Body>;
  if (stretch.count <= 0) return;
  const int64_t blocks =
      (stretch.groups + Program::kGroupsOfBlock - 1) / Program::kGroupsOfBlock;
  Launch(target, std::clamp(blocks, int64_t{1}, kMostBlocks),
         Program{body, stretch});
}

void Refuse(LaunchTarget* target) {
  if (target->error == 0) target->error = kInvalidValue;
}

// Calls act(T()) with the type that a wide element has.
template <class Act>
void WithWide(LaunchTarget* target, ElementType type, const Act& act) {
  if (type == ElementType::kFloat32) {
    act(float{});
  } else if (type == ElementType::kFloat64) {
    act(double{});
  } else {
    Refuse(target);
  }
}

// Calls act(Format()) with the format of a 16-bit type.
template <class Act>
void WithFormat(LaunchTarget* target, ElementType type, const Act& act) {
  if (type == ElementType::kFloat16) {
    act(Float16Element());
  } else if (type == ElementType::kBFloat16) {
    act(BFloat16Element());
  } else {
    Refuse(target);
  }
}

// Calls act(T()) with an unsigned integer of the element's size.
template <class Act>
void WithBits(LaunchTarget* target, ElementType type, const Act& act) {
  switch (type) {
    case ElementType::kFloat32:
      return act(uint32_t{});
    case ElementType::kFloat64:
      return act(uint64_t{});
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return act(uint16_t{});
    default:
      return Refuse(target);
  }
}

// Blocks of a range: enough for one range to occupy a GPU, and no more than
// that for many.
int64_t PartsOf(int64_t range_count) {
  constexpr int64_t kMostParts = 256;
  return std::clamp(kMostBlocks / std::max(range_count, int64_t{1}), int64_t{1},
                    kMostParts);
}

}  // namespace

Stretch MakeStretch(int64_t count, int group, uintptr_t out, size_t out_size,
                    uintptr_t in, size_t in_size, uintptr_t other) {
  Stretch stretch;
  stretch.count = count;
  const uintptr_t past = out % kMovedBytes;
  const uintptr_t head = (kMovedBytes - past) % kMovedBytes / out_size;
  stretch.head = std::min(count, static_cast<int64_t>(head));
  stretch.groups = (count - stretch.head) / group;
  stretch.in_aligned = IsAligned(in + head * in_size);
  stretch.other_aligned = IsAligned(other + head * in_size);
  return stretch;
}

void EnqueueNarrow(LaunchTarget* target, ElementType from, const void* in,
                   ElementType to, uint16_t* out, int64_t count,
                   double factor) {
  WithWide(target, from, [&](auto wide) {
    WithFormat(target, to, [&](auto format) {
      using T = decltype(wide);
      using Body = NarrowBody<T, decltype(format)>;
      const Stretch stretch =
          MakeStretch(count, Body::kGroup, AddressOf(out), sizeof(uint16_t),
                      AddressOf(in), sizeof(T), 0);
      LaunchElementwise(
          target, stretch,
          Body{static_cast<const T*>(in), out, static_cast<T>(factor)});
    });
  });
}

void EnqueueWiden(LaunchTarget* target, ElementType from, const uint16_t* in,
                  ElementType to, void* out, int64_t count) {
  WithWide(target, to, [&](auto wide) {
    WithFormat(target, from, [&](auto format) {
      using T = decltype(wide);
      using Body = WidenBody<T, decltype(format)>;
      const Stretch stretch =
          MakeStretch(count, Body::kGroup, AddressOf(out), sizeof(T),
                      AddressOf(in), sizeof(uint16_t), 0);
      LaunchElementwise(target, stretch, Body{in, static_cast<T*>(out)});
    });
  });
}

void EnqueueDivide(LaunchTarget* target, ElementType type, void* values,
                   int64_t count, int divisor) {
  const bool known = WithElement(type, [&](auto element) {
    using Body = DivideBody<decltype(element)>;
    using Stored = typename Body::Stored;
    const Stretch stretch = MakeStretch(count, Body::kGroup, AddressOf(values),
                                        sizeof(Stored), 0, sizeof(Stored), 0);
    LaunchElementwise(
        target, stretch,
        Body{static_cast<Stored*>(values),
             static_cast<typename decltype(element)::Value>(divisor)});
  });
  if (!known) Refuse(target);
}

void EnqueueAdd(LaunchTarget* target, ElementType type, void* values,
                const void* other, int64_t count) {
  WithWide(target, type, [&](auto wide) {
    using T = decltype(wide);
    using Body = AddBody<T>;
    const Stretch stretch =
        MakeStretch(count, Body::kGroup, AddressOf(values), sizeof(T), 0,
                    sizeof(T), AddressOf(other));
    LaunchElementwise(
        target, stretch,
        Body{static_cast<T*>(values), static_cast<const T*>(other)});
  });
}

void EnqueueCopy(LaunchTarget* target, ElementType type, const void* in,
                 void* out, int64_t count) {
  WithBits(target, type, [&](auto bits) {
    using T = decltype(bits);
    using Body = CopyBody<T>;
    const Stretch stretch = MakeStretch(count, Body::kGroup, AddressOf(out),
                                        sizeof(T), AddressOf(in), sizeof(T), 0);
    LaunchElementwise(target, stretch,
                      Body{static_cast<const T*>(in), static_cast<T*>(out)});
  });
}

void EnqueueFillNan(LaunchTarget* target, ElementType type, void* values,
                    int64_t count) {
  WithBits(target, type, [&](auto bits) {
    using T = decltype(bits);
    using Body = FillBody<T>;
    // All bits of the exponent and the highest one of the mantissa, of either
    // 16-bit type.
    T nan = static_cast<T>(0x7fc0);
    if constexpr (sizeof(T) == 4) nan = 0x7fc00000u;
    if constexpr (sizeof(T) == 8) nan = uint64_t{0x7ff8} << 48;
    const Stretch stretch = MakeStretch(count, Body::kGroup, AddressOf(values),
                                        sizeof(T), 0, sizeof(T), 0);
    LaunchElementwise(target, stretch, Body{static_cast<T*>(values), nan});
  });
}

int64_t CountNonFinitePartials(int64_t range_count) {
  return range_count * PartsOf(range_count);
}

void EnqueueCountNonFinite(LaunchTarget* target, ElementType type,
                           const void* values, const ElementRange* ranges,
                           int64_t range_count, int64_t* partials,
                           int64_t* counts) {
  const int64_t parts = PartsOf(range_count);
  const bool known = WithElement(type, [&](auto element) {
    using Program = CountNonFiniteProgram<decltype(element)>;
    Launch(target, range_count * parts,
           Program{static_cast<const typename Program::Stored*>(values), ranges,
                   parts, partials});
  });
  if (!known) return Refuse(target);
  Launch(target, range_count, SumPartialsProgram{partials, parts, counts});
}

}  // namespace coxswain
