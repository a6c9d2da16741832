#include "client/device/arithmetic.h"
#include "hooks/kernels/cuda/elementwise.h"
#include "tests/gpu/kernel_cases.h"

namespace coxswain::gpu {
namespace {

double Bytes(const Elements& elements, double per_element) {
  return per_element * static_cast<double>(elements.count);
}
double Bytes(ElementType type) { return static_cast<double>(SizeOf(type)); }

Array<unsigned char> AddOutput(Case* one, Elements elements) {
  elements.fill = Fill::kPoison;
  return AddElements(one, elements);
}

void Finish(Case* one, const Elements& elements, double per_element,
            std::function<void(LaunchTarget*, unsigned char*)> enqueue) {
  one->Do(std::move(enqueue), Bytes(elements, per_element),
          static_cast<double>(elements.count));
}

}  // namespace

Content ContentOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return Content::kFloat32;
    case ElementType::kFloat64:
      return Content::kFloat64;
    case ElementType::kFloat16:
      return Content::kFloat16;
    case ElementType::kBFloat16:
      return Content::kBFloat16;
    default:
      return Content::kBytes;
  }
}

std::string NameOf(const std::string& kernel, const Elements& elements) {
  const char* type = elements.type == ElementType::kFloat32   ? "float32"
                     : elements.type == ElementType::kFloat64 ? "float64"
                     : elements.type == ElementType::kFloat16 ? "float16"
                                                              : "bfloat16";
  return kernel + " " + type + "[" + std::to_string(elements.count) + "]" +
         (elements.shift > 0 ? "+" + std::to_string(elements.shift) : "");
}

Array<unsigned char> AddElements(Case* one, const Elements& elements) {
  const Content content = ContentOf(elements.type);
  switch (SizeOf(elements.type)) {
    case 8:
      return {one->Add<double>(elements.count, elements.fill, content,
                               elements.shift)
                  .offset};
    case 4:
      return {one->Add<float>(elements.count, elements.fill, content,
                              elements.shift)
                  .offset};
    default:
      return {one->Add<uint16_t>(elements.count, elements.fill, content,
                                 elements.shift)
                  .offset};
  }
}

Case NarrowCase(const Elements& elements, ElementType other, int divisor) {
  Case one(NameOf(other == ElementType::kFloat16 ? "narrow to float16 from"
                                                 : "narrow to bfloat16 from",
                  elements));
  const auto in = AddElements(&one, elements);
  const auto out =
      AddOutput(&one, {other, elements.count, elements.shift, Fill::kPoison});
  Finish(&one, elements, Bytes(elements.type) + 2,
         [=](LaunchTarget* target, unsigned char* base) {
           EnqueueNarrow(target, elements.type, in.in(base), other,
                         Array<uint16_t>{out.offset}.in(base), elements.count,
                         1.0 / divisor);
         });
  return one;
}

Case WidenCase(const Elements& elements, ElementType other) {
  Case one(NameOf(
      other == ElementType::kFloat16 ? "widen float16 to" : "widen bfloat16 to",
      elements));
  const auto in =
      AddElements(&one, {other, elements.count, elements.shift, elements.fill});
  const auto out = AddOutput(&one, elements);
  Finish(&one, elements, Bytes(elements.type) + 2,
         [=](LaunchTarget* target, unsigned char* base) {
           EnqueueWiden(target, other, Array<uint16_t>{in.offset}.in(base),
                        elements.type, out.in(base), elements.count);
         });
  return one;
}

Case DivideCase(const Elements& elements) {
  Case one(NameOf("divide", elements));
  const auto values = AddElements(&one, elements);
  Finish(&one, elements, 2 * Bytes(elements.type),
         [=](LaunchTarget* target, unsigned char* base) {
           EnqueueDivide(target, elements.type, values.in(base), elements.count,
                         3);
         });
  return one;
}

Case AddCase(const Elements& elements) {
  Case one(NameOf("add", elements));
  const auto values = AddElements(&one, elements);
  const auto other = AddElements(&one, elements);
  Finish(&one, elements, 3 * Bytes(elements.type),
         [=](LaunchTarget* target, unsigned char* base) {
           EnqueueAdd(target, elements.type, values.in(base), other.in(base),
                      elements.count);
         });
  return one;
}

Case CopyCase(const Elements& elements) {
  Case one(NameOf("copy", elements));
  const auto in = AddElements(&one, elements);
  const auto out = AddOutput(&one, elements);
  Finish(&one, elements, 2 * Bytes(elements.type),
         [=](LaunchTarget* target, unsigned char* base) {
           EnqueueCopy(target, elements.type, in.in(base), out.in(base),
                       elements.count);
         });
  return one;
}

Case FillNanCase(const Elements& elements) {
  Case one(NameOf("fill with NaN", elements));
  const auto values = AddOutput(&one, elements);
  Finish(&one, elements, Bytes(elements.type),
         [=](LaunchTarget* target, unsigned char* base) {
           EnqueueFillNan(target, elements.type, values.in(base),
                          elements.count);
         });
  return one;
}

Case CountNonFiniteCase(const Elements& elements) {
  Case one(NameOf("count non-finite", elements));
  const auto values = AddElements(&one, elements);
  const int64_t half = elements.count / 2;
  const int64_t count = elements.count;
  const auto ranges = one.AddTable<ElementRange>(3, [=](unsigned char*) {
    return std::vector<ElementRange>{
        {0, half}, {half, 0}, {half, count - half}};
  });
  const auto partials = one.Add<int64_t>(CountNonFinitePartials(3),
                                         Fill::kPoison, Content::kBytes);
  const auto counts = one.Add<int64_t>(3, Fill::kPoison, Content::kBytes);
  Finish(&one, elements, Bytes(elements.type),
         [=](LaunchTarget* target, unsigned char* base) {
           EnqueueCountNonFinite(target, elements.type, values.in(base),
                                 ranges.in(base), 3, partials.in(base),
                                 counts.in(base));
         });
  return one;
}

Case ScaleCase(const Elements& elements) {
  Case one(NameOf("scale", elements));
  const auto in = AddElements(&one, elements);
  const auto out = AddOutput(&one, elements);
  Finish(&one, elements, 2 * Bytes(elements.type),
         [=](LaunchTarget* target, unsigned char* base) {
           ScaleOnDevice(target, elements.type, in.in(base), out.in(base),
                         elements.count, 0.3);
         });
  return one;
}

Case MeasureCase(const Elements& elements) {
  Case one(NameOf("measure", elements));
  const auto values = AddElements(&one, elements);
  const std::vector<int64_t> begin = {0, elements.count / 3, elements.count / 3,
                                      elements.count};
  // Of a sum and a number: a NaN of either side has bits of its own.
  const Fill fill = Fill::kPoison;
  const auto scratch = one.Add<DeviceStatistics>(
      ScratchForMeasure(begin.data(), 3), fill, Content::kFloat64);
  const auto results = one.Add<DeviceStatistics>(3, fill, Content::kFloat64);
  Finish(&one, elements, Bytes(elements.type),
         [=](LaunchTarget* target, unsigned char* base) {
           MeasureOnDevice(target, elements.type, values.in(base), begin.data(),
                           3, scratch.in(base), results.in(base));
         });
  return one;
}

}  // namespace coxswain::gpu
