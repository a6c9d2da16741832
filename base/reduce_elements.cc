#include "base/reduce_elements.h"

#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/float16.h"

namespace coxswain {
namespace {

// How an element is read and written: as itself, or through float.
template <typename T>
struct Plain {
  using Stored = T;
  static T Load(T value) { return value; }
  static T Store(T value) { return value; }
};
struct Float16 {
  using Stored = uint16_t;
  static float Load(uint16_t bits) { return Float16ToFloat(bits); }
  static uint16_t Store(float value) { return FloatToFloat16(value); }
};
struct BFloat16 {
  using Stored = uint16_t;
  static float Load(uint16_t bits) { return BFloat16ToFloat(bits); }
  static uint16_t Store(float value) { return FloatToBFloat16(value); }
};

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      // Unsigned, because a signed overflow is undefined.
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) +
                            static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};
// A NaN in `a` stays because nothing compares less; one in `b` is taken.
struct Min {
  template <typename T>
  T operator()(T a, T b) const {
    return b < a || b != b ? b : a;
  }
};
struct Max {
  template <typename T>
  T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }
};

template <typename Element, typename Op>
void Apply(void* out, const void* a, const void* b, size_t count, Op op) {
  using Stored = typename Element::Stored;
  auto* to = static_cast<Stored*>(out);
  const auto* left = static_cast<const Stored*>(a);
  const auto* right = static_cast<const Stored*>(b);
  for (size_t i = 0; i < count; ++i) {
    to[i] = Element::Store(op(Element::Load(left[i]), Element::Load(right[i])));
  }
}

template <typename Element>
void ReduceAs(ElementOp op, void* out, const void* a, const void* b,
              size_t count) {
  switch (op) {
    case ElementOp::kSum:
      return Apply<Element>(out, a, b, count, Sum());
    case ElementOp::kMin:
      return Apply<Element>(out, a, b, count, Min());
    case ElementOp::kMax:
      return Apply<Element>(out, a, b, count, Max());
  }
  COXSWAIN_CHECK(false);
}

}  // namespace

void ReduceElements(ElementType type, ElementOp op, void* out, const void* a,
                    const void* b, size_t count) {
  switch (type) {
    case ElementType::kFloat32:
      return ReduceAs<Plain<float>>(op, out, a, b, count);
    case ElementType::kFloat64:
      return ReduceAs<Plain<double>>(op, out, a, b, count);
    case ElementType::kFloat16:
      return ReduceAs<Float16>(op, out, a, b, count);
    case ElementType::kBFloat16:
      return ReduceAs<BFloat16>(op, out, a, b, count);
    case ElementType::kInt8:
      return ReduceAs<Plain<int8_t>>(op, out, a, b, count);
    case ElementType::kInt32:
      return ReduceAs<Plain<int32_t>>(op, out, a, b, count);
    case ElementType::kInt64:
      return ReduceAs<Plain<int64_t>>(op, out, a, b, count);
    case ElementType::kUInt8:
      return ReduceAs<Plain<uint8_t>>(op, out, a, b, count);
  }
  COXSWAIN_CHECK(false);
}

}  // namespace coxswain
