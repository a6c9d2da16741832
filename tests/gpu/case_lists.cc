#include <vector>

#include "tests/gpu/kernel_cases.h"

// Which cases there are.

namespace coxswain::gpu {
namespace {

constexpr ElementType kTypes[] = {ElementType::kFloat32, ElementType::kFloat64,
                                  ElementType::kFloat16,
                                  ElementType::kBFloat16};
constexpr ElementType kNarrow[] = {ElementType::kFloat16,
                                   ElementType::kBFloat16};
// Elements that are timed: 1 GiB as float32, far beyond any cache.
constexpr int64_t kMany = int64_t{1} << 28;

void AddOfElements(const Elements& elements, std::vector<Case>* cases) {
  if (IsWide(elements.type)) {
    for (const ElementType other : kNarrow) {
      for (const int divisor : {1, 3}) {
        cases->push_back(NarrowCase(elements, other, divisor));
      }
      cases->push_back(WidenCase(elements, other));
    }
    cases->push_back(AddCase(elements));
  }
  cases->push_back(DivideCase(elements));
  cases->push_back(CopyCase(elements));
  cases->push_back(FillNanCase(elements));
  cases->push_back(CountNonFiniteCase(elements));
  cases->push_back(ScaleCase(elements));
  cases->push_back(MeasureCase(elements));
  if (elements.count > 0) cases->push_back(FindNonFiniteCase(elements));
}

void AddQuantised(const Elements& elements, int64_t size,
                  std::vector<Case>* cases) {
  Elements finite = elements;
  finite.fill = Fill::kRandom;
  cases->push_back(QuantiseCase(finite, size));
  cases->push_back(QuantiseCase(elements, size));
  cases->push_back(DequantiseCase(elements, size));
  cases->push_back(QuantiseMeanCase(finite, size, 3));
}

void AddLowRank(std::vector<Case>* cases) {
  const std::vector<LowRankShape> shapes = {
      {1, 1, 1},     {7, 5, 2},    {64, 128, 4}, {33, 257, 1}, {130, 70, 8},
      {300, 500, 3}, {40, 40, 12}, {1000, 3, 2}, {3, 1000, 2}, {256, 2304, 4}};
  const std::vector<int64_t> raws = {1, 1000, 0, 77};
  for (const ElementType type : kTypes) {
    const bool wide = type == ElementType::kFloat64;
    cases->push_back(LowRankCase(NameOf("low-rank step", {type, 0}), type, wide,
                                 shapes, raws));
    cases->push_back(LowRankCase(NameOf("low-rank step, raw only", {type, 0}),
                                 type, wide, {}, {5}));
  }
  const std::vector<LowRankShape> tall = {{1, 0, 1},    {5, 0, 2},
                                          {1000, 0, 4}, {257, 0, 1},
                                          {4097, 0, 8}, {40, 0, 33}};
  for (const bool wide : {false, true}) {
    for (const bool drawn : {false, true}) {
      cases->push_back(OrthogonaliseCase(wide, drawn, tall));
    }
  }
}

// Returns the matrices of torchvision's ResNet-50, as PowerSGD sees them.
std::vector<LowRankShape> ResNet50(int64_t rank) {
  std::vector<LowRankShape> shapes = {{64, 147, rank}};
  int64_t in = 64;
  const int64_t blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int64_t block = 0; block < blocks[stage]; ++block) {
      shapes.push_back({width, in, rank});
      shapes.push_back({width, width * 9, rank});
      shapes.push_back({width * 4, width, rank});
      if (block == 0) shapes.push_back({width * 4, in, rank});
      in = width * 4;
    }
  }
  shapes.push_back({1000, 2048, rank});
  return shapes;
}

// Six of GPT-2 XL's 48 layers.
std::vector<LowRankShape> Gpt2Xl(int64_t rank) {
  std::vector<LowRankShape> shapes;
  for (int layer = 0; layer < 6; ++layer) {
    shapes.push_back({1600, 4800, rank});
    shapes.push_back({1600, 1600, rank});
    shapes.push_back({1600, 6400, rank});
    shapes.push_back({6400, 1600, rank});
  }
  return shapes;
}

void AddTimedLowRank(const std::string& model,
                     const std::vector<LowRankShape>& shapes,
                     std::vector<Case>* cases) {
  const auto type = ElementType::kFloat32;
  cases->push_back(LowRankCase("take " + model, type, false, shapes, {},
                               {true, false, false}));
  cases->push_back(LowRankCase("project " + model, type, false, shapes, {},
                               {false, true, false}));
  cases->push_back(LowRankCase("finish " + model, type, false, shapes, {},
                               {false, false, true}));
}

}  // namespace

std::vector<Case> CasesToCheck(bool few) {
  std::vector<Case> cases;
  const std::vector<int64_t> counts =
      few ? std::vector<int64_t>{0, 1, 77}
          : std::vector<int64_t>{0, 1, 2, 3, 7, 31, 255, 1000, 4097, 200003};
  for (const ElementType type : kTypes) {
    for (const int64_t count : counts) {
      for (const int64_t shift : {0, 1, 3}) {
        AddOfElements({type, count, shift, Fill::kSpecial}, &cases);
        if (count == 0) continue;
        for (const int64_t size : {1, 7, 256, 4096}) {
          if (count * 20 < size) continue;
          AddQuantised({type, count, shift, Fill::kSpecial}, size, &cases);
        }
      }
    }
  }
  for (const int64_t count : counts) {
    if (count == 0) continue;
    cases.push_back(
        FoldCase({ElementType::kFloat32, count, count % 3, Fill::kRandom}));
  }
  AddLowRank(&cases);
  return cases;
}

std::vector<Case> CasesToTime() {
  std::vector<Case> cases;
  const Elements floats = {ElementType::kFloat32, kMany, 0, Fill::kRandom};
  for (const ElementType other : kNarrow) {
    cases.push_back(NarrowCase(floats, other, 2));
    cases.push_back(WidenCase(floats, other));
  }
  cases.push_back(DivideCase(floats));
  cases.push_back(AddCase(floats));
  cases.push_back(CopyCase(floats));
  cases.push_back(CountNonFiniteCase(floats));
  cases.push_back(ScaleCase(floats));
  cases.push_back(MeasureCase(floats));
  cases.push_back(QuantiseCase(floats, 256));
  cases.push_back(DequantiseCase(floats, 256));
  for (const int64_t rank : {1, 4}) {
    const std::string suffix = ", rank " + std::to_string(rank);
    AddTimedLowRank("ResNet-50" + suffix, ResNet50(rank), &cases);
    AddTimedLowRank("GPT-2 XL, 6 layers" + suffix, Gpt2Xl(rank), &cases);
  }
  cases.push_back(OrthogonaliseCase(false, false, ResNet50(4)));
  return cases;
}

}  // namespace coxswain::gpu
