#include "hooks/kernels/cuda/low_rank.h"

#include <algorithm>
#include <cstdint>

#include "client/device/elements.h"
#include "hooks/kernels/cuda/low_rank_access.h"
#include "hooks/kernels/cuda/low_rank_project.h"
#include "hooks/kernels/cuda/low_rank_sums.h"
#include "hooks/kernels/cuda/low_rank_take.h"

namespace coxswain {
namespace {

constexpr int kInvalidValue = 1;  // cudaErrorInvalidValue

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
