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

// Quotients, as they are stored.
template <typename Element>
struct Quotient {
  using Stored = typename Element::Stored;
  using Value = decltype(Element::Load(Stored()));

  Value operator()(Stored value) const {
    return Element::Load(Element::Store(Element::Load(value) / divisor));
  }

  Value divisor;
};
// By a power of two, whose inverse is exact: as much, and several times faster.
template <typename Element>
struct ExactQuotient {
  using Stored = typename Element::Stored;
  using Value = decltype(Element::Load(Stored()));

  Value operator()(Stored value) const {
    return Element::Load(Element::Store(Element::Load(value) * inverse));
  }

  Value inverse;
};

template <typename Element, typename QuotientOf>
void AddTo(void* out, const void* a, bool divides_a, const void* b,
           size_t count, QuotientOf quotient) {
  using Stored = typename Element::Stored;
  auto* to = static_cast<Stored*>(out);
  const auto* left = static_cast<const Stored*>(a);
  const auto* right = static_cast<const Stored*>(b);
  if (divides_a) {
    for (size_t i = 0; i < count; ++i) {
      to[i] = Element::Store(quotient(left[i]) + quotient(right[i]));
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    to[i] = Element::Store(Element::Load(left[i]) + quotient(right[i]));
  }
}

template <typename Element>
void AddQuotientsAs(void* out, const void* a, bool divides_a, const void* b,
                    int divisor, size_t count) {
  using Value = typename Quotient<Element>::Value;
  const auto by = static_cast<Value>(divisor);
  if ((divisor & (divisor - 1)) == 0) {
    return AddTo<Element>(out, a, divides_a, b, count,
                          ExactQuotient<Element>{1 / by});
  }
  AddTo<Element>(out, a, divides_a, b, count, Quotient<Element>{by});
}

}  // namespace

void AddQuotients(ElementType type, void* out, const void* a, bool divides_a,
                  const void* b, int divisor, size_t count) {
  switch (type) {
    case ElementType::kFloat32:
      return AddQuotientsAs<Plain<float>>(out, a, divides_a, b, divisor, count);
    case ElementType::kFloat64:
      return AddQuotientsAs<Plain<double>>(out, a, divides_a, b, divisor,
                                           count);
    case ElementType::kFloat16:
      return AddQuotientsAs<Float16>(out, a, divides_a, b, divisor, count);
    case ElementType::kBFloat16:
      return AddQuotientsAs<BFloat16>(out, a, divides_a, b, divisor, count);
    default:
      COXSWAIN_CHECK(false);
  }
}

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
