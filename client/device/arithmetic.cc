#include "client/device/arithmetic.h"

#include <algorithm>

#include "base/check.h"
#include "client/device/elements.h"

namespace coxswain {
namespace {

using arithmetic::AddElements;
using arithmetic::MeasureChunks;
using arithmetic::Runs;
using arithmetic::ScaleElements;
using arithmetic::SumChunks;

int64_t DivideUp(int64_t count, int64_t by) { return (count + by - 1) / by; }

Runs MakeRuns(const int64_t* begin, int count) {
  Runs runs;
  runs.count = count;
  for (int r = 0; r <= count; ++r) runs.begin[r] = begin[r];
  for (int r = 0; r < count; ++r) {
    runs.first_chunk[r + 1] =
        runs.first_chunk[r] + DivideUp(begin[r + 1] - begin[r], Runs::kChunk);
  }
  return runs;
}

int RoundsOf(const Runs& runs) {
  int64_t longest = 1;
  for (int r = 0; r < runs.count; ++r) {
    longest = std::max(longest, runs.first_chunk[r + 1] - runs.first_chunk[r]);
  }
  return static_cast<int>(DivideUp(longest, SumChunks::kThreads));
}

}  // namespace

void ScaleOnDevice(LaunchTarget* target, ElementType type, const void* in,
                   void* out, int64_t count, double factor) {
  const bool known = WithElement(type, [&](auto element) {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    using Program = ScaleElements<Element>;
    Launch(target, DivideUp(count, Program::kBlock),
           Program{static_cast<const Stored*>(in), static_cast<Stored*>(out),
                   count, static_cast<typename Element::Value>(factor)});
  });
  COXSWAIN_CHECK(known);
}

void AddOnDevice(LaunchTarget* target, ElementType type, const void* from,
                 void* to, int64_t count) {
  const bool known = WithElement(type, [&](auto element) {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    using Program = AddElements<Element>;
    Launch(target, DivideUp(count, Program::kBlock),
           Program{static_cast<const Stored*>(from), static_cast<Stored*>(to),
                   count});
  });
  COXSWAIN_CHECK(known);
}

void MeasureOnDevice(LaunchTarget* target, ElementType type, const void* values,
                     const int64_t* begin, int runs, DeviceStatistics* scratch,
                     DeviceStatistics* results) {
  for (int first = 0; first < runs; first += Runs::kMost) {
    const int count = std::min(runs - first, Runs::kMost);
    const Runs some = MakeRuns(begin + first, count);
    const bool known = WithElement(type, [&](auto element) {
      using Element = decltype(element);
      using Program = MeasureChunks<Element>;
      Launch(target, DivideUp(some.chunks(), Program::kChunks),
             Program{static_cast<const typename Element::Stored*>(values),
                     scratch, some});
    });
    COXSWAIN_CHECK(known);
    Launch(target, count,
           SumChunks{scratch, results + first, some, RoundsOf(some)});
  }
}

int64_t ScratchForMeasure(const int64_t* begin, int runs) {
  int64_t most = 0;
  for (int first = 0; first < runs; first += Runs::kMost) {
    const int count = std::min(runs - first, Runs::kMost);
    most = std::max(most, MakeRuns(begin + first, count).chunks());
  }
  return most;
}

}  // namespace coxswain
