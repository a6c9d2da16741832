#include "hooks/kernels/cuda/low_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "client/device/elements.h"
#include "hooks/kernels/cuda/low_rank_access.h"
#include "hooks/kernels/cuda/low_rank_project.h"
#include "hooks/kernels/cuda/low_rank_sums.h"
#include "hooks/kernels/cuda/low_rank_take.h"

namespace coxswain {
namespace {

// log2 of the threads side by side: enough for a row, but no more than a warp
// if the rest of the block has rows to work on.
int LanesLog(int64_t n, int64_t m, int64_t vector, int64_t rows_of_thread) {
  int log = 0;
  while ((1 << log) < kLowRankThreads && (int64_t{1} << log) * vector < m) {
    ++log;
  }
  constexpr int kWarpLog = 5;
  while (log > kWarpLog && (kLowRankThreads >> log) * rows_of_thread < n) --log;
  return log;
}

class Planner {
 public:
  Planner(const std::vector<LowRankShape>& matrices,
          const std::vector<int64_t>& raws, size_t element_bytes)
      : matrices_(matrices),
        raws_(raws),
        vector_(16 / static_cast<int64_t>(element_bytes)) {}

  LowRankPlan Plan() {
    for (const LowRankShape& shape : matrices_) {
      plan_.rank = std::max(plan_.rank, shape.r);
    }
    plan_.take = Section([&](int32_t i) { AddTake(i); });
    plan_.take_sums = Section([&](int32_t i) { AddSums(i, true); }, true);
    plan_.project = Section([&](int32_t i) { AddProject(i, true); });
    plan_.project_sums = Section([&](int32_t i) { AddSums(i, false); });
    plan_.finish = Section([&](int32_t i) { AddProject(i, false); }, true);
    return std::move(plan_);
  }

 private:
  struct Cut {
    int log;
    int64_t rows, columns;  // of a tile
    int64_t parts;          // partial sums of an element
  };

  Cut TakeCut(const LowRankShape& shape) const {
    const int log = LanesLog(shape.n, shape.m, vector_, vector_);
    const int64_t columns = int64_t{kColumnsOfThread} << log;
    return {log, (kLowRankThreads >> log) * vector_, columns,
            CeilOf(shape.m, columns)};
  }
  Cut ProjectCut(const LowRankShape& shape) const {
    const int log = LanesLog(shape.n, shape.m, vector_, kRowsOfThread);
    const int64_t rows = (kLowRankThreads >> log) * kRowsOfThread;
    return {log, rows, vector_ << log, CeilOf(shape.n, rows)};
  }

  // The tiles that add(i) appends for each matrix, and those of raw tensors.
  template <class Add>
  LowRankTiles Section(const Add& add, bool with_raws = false) {
    const auto begin = static_cast<int64_t>(plan_.tiles.size());
    partial_ = 0;
    for (size_t i = 0; i < matrices_.size(); ++i) add(static_cast<int32_t>(i));
    for (size_t i = 0; with_raws && i < raws_.size(); ++i) {
      for (int64_t at = 0; at < raws_[i]; at += kRawTile) {
        plan_.tiles.push_back({at, 0, 0, static_cast<int32_t>(i), kRawKind});
      }
    }
    plan_.partials = std::max(plan_.partials, partial_);
    return {begin, static_cast<int64_t>(plan_.tiles.size()) - begin};
  }

  const LowRankShape& Shape(int32_t i) const {
    return matrices_[static_cast<size_t>(i)];
  }

  void AddTake(int32_t i) {
    const LowRankShape& shape = Shape(i);
    const Cut cut = TakeCut(shape);
    for (int64_t row = 0; row < shape.n; row += cut.rows) {
      for (int64_t part = 0; part < cut.parts; ++part) {
        plan_.tiles.push_back({row, part * cut.columns,
                               partial_ + part * shape.n * shape.r, i,
                               cut.log});
      }
    }
    partial_ += cut.parts * shape.n * shape.r;
  }

  void AddProject(int32_t i, bool sums) {
    const LowRankShape& shape = Shape(i);
    const Cut cut = ProjectCut(shape);
    for (int64_t part = 0; part < cut.parts; ++part) {
      for (int64_t column = 0; column < shape.m; column += cut.columns) {
        plan_.tiles.push_back({part * cut.rows, column,
                               sums ? partial_ + part * shape.m * shape.r : 0,
                               i, cut.log});
      }
    }
    if (sums) partial_ += cut.parts * shape.m * shape.r;
  }

  // Of an empty matrix too: its factors are zero.
  void AddSums(int32_t i, bool take) {
    const LowRankShape& shape = Shape(i);
    const int64_t parts = take ? TakeCut(shape).parts : ProjectCut(shape).parts;
    const int64_t count = (take ? shape.n : shape.m) * shape.r;
    for (int64_t at = 0; at < count; at += SumsOfTile(parts)) {
      plan_.tiles.push_back({at, parts, partial_, i, SumLanes(parts)});
    }
    partial_ += parts * count;
  }

  const std::vector<LowRankShape>& matrices_;
  const std::vector<int64_t>& raws_;
  const int64_t vector_;
  LowRankPlan plan_;
  int64_t partial_ = 0;
};

// Calls act(Element()) with the type of the gradients.
template <typename T, class Act>
void WithGradient(LaunchTarget* target, ElementType type, const Act& act) {
  if (!WithElementOf<T>(type, act) && target->error == 0) {
    target->error = kInvalidValue;
  }
}

template <int kWidth, bool kMany>
struct Width {
  static constexpr int kColumns = kWidth;
  static constexpr bool kLoops = kMany;
};

// Calls act(Width()) with how many columns a program has at a time.
template <class Act>
void WithWidth(int64_t rank, const Act& act) {
  if (rank <= 1) return act(Width<1, false>());
  if (rank <= 2) return act(Width<2, false>());
  if (rank <= 4) return act(Width<4, false>());
  if (rank <= 8) return act(Width<8, false>());
  act(Width<8, true>());
}

template <typename T, class Act>
void With(LaunchTarget* target, const DeviceLowRank<T>& on, const Act& act) {
  WithGradient<T>(target, on.gradient_type, [&](auto element) {
    WithWidth(on.plan->rank, [&](auto width) { act(element, width); });
  });
}

}  // namespace

LowRankPlan PlanLowRank(const std::vector<LowRankShape>& matrices,
                        const std::vector<int64_t>& raws,
                        size_t element_bytes) {
  return Planner(matrices, raws, element_bytes).Plan();
}

template <typename T>
void TakeOnDevice(LaunchTarget* target, const DeviceLowRank<T>& on, T divisor) {
  const LowRankPlan& plan = *on.plan;
  With(target, on, [&](auto element, auto width) {
    using Element = decltype(element);
    using Wide = decltype(width);
    Launch(
        target, plan.take.count,
        TakeProgram<T, Element, Wide::kColumns, Wide::kLoops>{
            on.tiles + plan.take.begin, on.matrices, on.partials, plan.rank});
  });
  WithGradient<T>(target, on.gradient_type, [&](auto element) {
    // At least one block, which clears the flag.
    Launch(target, std::max<int64_t>(1, plan.take_sums.count),
           SumsProgram<T, decltype(element), false>{
               on.tiles + plan.take_sums.begin, plan.take_sums.count,
               on.matrices, on.raws, on.partials, divisor, on.poisoned});
  });
}

template <typename T>
void CheckOnDevice(LaunchTarget* target, T* values, int64_t count, T divisor,
                   uint32_t* poisoned) {
  using Program = CheckProgram<T>;
  Launch(target, CeilOf(count, Program::kThreads * Program::kOfThread),
         Program{values, count, divisor, poisoned});
}

template <typename T>
void ProjectOnDevice(LaunchTarget* target, const DeviceLowRank<T>& on,
                     T divisor) {
  const LowRankPlan& plan = *on.plan;
  With(target, on, [&](auto element, auto width) {
    using Element = decltype(element);
    using Wide = decltype(width);
    Launch(target, plan.project.count,
           ProjectProgram<T, Element, Wide::kColumns, Wide::kLoops>{
               on.tiles + plan.project.begin, on.matrices, on.partials,
               plan.rank});
  });
  // No gradients are read here: one instance for all their types.
  Launch(target, plan.project_sums.count,
         SumsProgram<T, OwnElement<T>, true>{
             on.tiles + plan.project_sums.begin, plan.project_sums.count,
             on.matrices, on.raws, on.partials, divisor, nullptr});
}

template <typename T>
void FinishOnDevice(LaunchTarget* target, const DeviceLowRank<T>& on,
                    T raw_divisor, PoisonedGradients poisoned) {
  const LowRankPlan& plan = *on.plan;
  With(target, on, [&](auto element, auto width) {
    using Element = decltype(element);
    using Wide = decltype(width);
    Launch(target, plan.finish.count,
           FinishProgram<T, Element, Wide::kColumns, Wide::kLoops>{
               on.tiles + plan.finish.begin, on.matrices, on.raws, on.poisoned,
               raw_divisor, poisoned == PoisonedGradients::kFillWithNan});
  });
}

template void TakeOnDevice<float>(LaunchTarget*, const DeviceLowRank<float>&,
                                  float);
template void TakeOnDevice<double>(LaunchTarget*, const DeviceLowRank<double>&,
                                   double);
template void CheckOnDevice<float>(LaunchTarget*, float*, int64_t, float,
                                   uint32_t*);
template void CheckOnDevice<double>(LaunchTarget*, double*, int64_t, double,
                                    uint32_t*);
template void ProjectOnDevice<float>(LaunchTarget*, const DeviceLowRank<float>&,
                                     float);
template void ProjectOnDevice<double>(LaunchTarget*,
                                      const DeviceLowRank<double>&, double);
template void FinishOnDevice<float>(LaunchTarget*, const DeviceLowRank<float>&,
                                    float, PoisonedGradients);
template void FinishOnDevice<double>(LaunchTarget*,
                                     const DeviceLowRank<double>&, double,
                                     PoisonedGradients);

}  // namespace coxswain
