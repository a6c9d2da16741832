#include "hooks/kernels/cuda/quantise.h"

#include "base/check.h"
#include "client/device/elements.h"
#include "hooks/kernels/cuda/quantise_programs.h"

namespace coxswain {
namespace {

template <class Source>
void LaunchQuantise(LaunchTarget* target, Source source, QuantiseRuns runs,
                    int64_t size, int64_t blocks, uint8_t* out,
                    int32_t* clear) {
  COXSWAIN_CHECK(size >= 1 && size <= kMaxQuantisedBlock);
  const QuantiseGrid grid = QuantiseGrid::Of(size, blocks);
  Launch(target, grid.launched(),
         QuantiseProgram<Source>{source, runs.table, runs.entries, grid, out,
                                 clear});
}

template <class Element>
void LaunchDequantise(LaunchTarget* target, const uint8_t* in,
                      const QuantiseGrid& grid, int64_t count, void* out,
                      const int32_t* skip) {
  Launch(
      target, grid.launched(),
      DequantiseProgram<Element>{
          in, grid, count, static_cast<typename Element::Stored*>(out), skip});
}

// Whether `next` goes on where `last`, of `count` elements, ends.
template <typename T>
bool Joins(const QuantiseEntry& last, int64_t count, const QuantiseRun<T>& next,
           DType type) {
  const auto follows = [count](const void* before, const void* after,
                               size_t width) {
    if (before == nullptr || after == nullptr) return before == after;
    return static_cast<const char*>(before) +
               count * static_cast<int64_t>(width) ==
           after;
  };
  return next.type == type &&
         follows(last.gradient, next.gradient, SizeOf(next.type)) &&
         follows(last.error, next.error, sizeof(T)) &&
         follows(last.remainder, next.remainder, sizeof(T));
}

}  // namespace

template <typename T>
std::vector<QuantiseEntry> QuantiseTable(
    const std::vector<QuantiseRun<T>>& runs) {
  std::vector<QuantiseEntry> table;
  int64_t first = 0;
  for (const QuantiseRun<T>& run : runs) {
    if (run.count == 0) continue;
    COXSWAIN_CHECK(run.type == runs[0].type);
    if (table.empty() ||
        !Joins(table.back(), first - table.back().first, run, run.type)) {
      table.push_back({run.gradient, run.error, run.remainder, first});
    }
    first += run.count;
  }
  table.push_back({nullptr, nullptr, nullptr, first});
  return table;
}

template <typename T>
void EnqueueQuantise(LaunchTarget* target, QuantiseRuns runs, ElementType type,
                     int64_t size, int64_t blocks, uint8_t* out,
                     int32_t* clear) {
  const bool known = WithElementOf<T>(type, [&](auto element) {
    LaunchQuantise(target, GradientSource<decltype(element)>{}, runs, size,
                   blocks, out, clear);
  });
  COXSWAIN_CHECK(known);
}

template <typename T>
void EnqueueQuantiseMean(LaunchTarget* target, const uint8_t* in,
                         int64_t stride, int ranks, QuantiseRuns runs,
                         int64_t size, int64_t blocks, uint8_t* out) {
  COXSWAIN_CHECK(ranks >= 1);
  LaunchQuantise(target, MeanSource<T>{in, stride, ranks}, runs, size, blocks,
                 out, nullptr);
}

void EnqueueDequantise(LaunchTarget* target, const uint8_t* in, int64_t size,
                       int64_t count, void* out, ElementType type,
                       const int32_t* skip) {
  COXSWAIN_CHECK(size >= 1 && size <= kMaxQuantisedBlock);
  const QuantiseGrid grid = QuantiseGrid::Of(size, (count + size - 1) / size);
  const bool known = WithElement(type, [&](auto element) {
    LaunchDequantise<decltype(element)>(target, in, grid, count, out, skip);
  });
  COXSWAIN_CHECK(known);
}

void EnqueueFindBadScale(LaunchTarget* target, const uint8_t* in, int64_t size,
                         int64_t blocks, int32_t* found) {
  constexpr int64_t kThreads = FindBadScaleProgram::kThreads;
  Launch(target, (blocks + kThreads - 1) / kThreads,
         FindBadScaleProgram{in, QuantiseGrid::Of(size, blocks), found});
}

template <typename T>
void EnqueueFold(LaunchTarget* target, const FoldEntry<T>* table,
                 int64_t entries, int64_t count, T weight) {
  constexpr int64_t kThreads = FoldProgram<T>::kThreads;
  Launch(target, (count + kThreads - 1) / kThreads,
         FoldProgram<T>{table, entries, weight});
}

void EnqueueFindNonFinite(LaunchTarget* target, QuantiseRuns runs,
                          ElementType type, int rank, int ranks, int32_t* flags,
                          int32_t* by_rank) {
  Launch(target, runs.entries, FlagNonFiniteProgram{runs.table, type, flags});
  Launch(target, 1,
         FirstFlagProgram{flags, static_cast<int32_t>(runs.entries), rank,
                          ranks, by_rank});
}

template std::vector<QuantiseEntry> QuantiseTable<float>(
    const std::vector<QuantiseRun<float>>&);
template std::vector<QuantiseEntry> QuantiseTable<double>(
    const std::vector<QuantiseRun<double>>&);
template void EnqueueQuantise<float>(LaunchTarget*, QuantiseRuns, ElementType,
                                     int64_t, int64_t, uint8_t*, int32_t*);
template void EnqueueQuantise<double>(LaunchTarget*, QuantiseRuns, ElementType,
                                      int64_t, int64_t, uint8_t*, int32_t*);
template void EnqueueQuantiseMean<float>(LaunchTarget*, const uint8_t*, int64_t,
                                         int, QuantiseRuns, int64_t, int64_t,
                                         uint8_t*);
template void EnqueueQuantiseMean<double>(LaunchTarget*, const uint8_t*,
                                          int64_t, int, QuantiseRuns, int64_t,
                                          int64_t, uint8_t*);
template void EnqueueFold<float>(LaunchTarget*, const FoldEntry<float>*,
                                 int64_t, int64_t, float);
template void EnqueueFold<double>(LaunchTarget*, const FoldEntry<double>*,
                                  int64_t, int64_t, double);

}  // namespace coxswain
