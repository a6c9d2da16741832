#include "tests/checkpoint/resumed_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

// What is allotted to the runs, one after the other.
constexpr int64_t kBucketBytes[] = {3000, 900, 100'000, 5000};

HookWorld::Buckets BucketsOfRun(const ResumedRun& run, size_t number) {
  return BucketsOf(ResumeModel(run.dtype),
                   kBucketBytes[run.other_buckets ? number % 4 : 0]);
}

std::unique_ptr<HookWorld> MakeWorld(const ResumedRun& run, size_t number) {
  return std::make_unique<HookWorld>(run.spec, ResumeModel(run.dtype),
                                     run.sizes[number],
                                     BucketsOfRun(run, number));
}

Gradients StepOf(HookWorld& world, const ResumedRun& run, int64_t step) {
  return world.Step(
      Replayed(ResumeModel(run.dtype), run.signal, world.size(), step));
}

std::vector<std::vector<int>> Groups(const ResumedRun& run, size_t number) {
  if (run.norm == NormOf::kBucket) return BucketsOfRun(run, number);
  const int count = static_cast<int>(ResumeModel(run.dtype).size());
  std::vector<std::vector<int>> groups(1);
  for (int i = 0; i < count; ++i) {
    if (run.norm == NormOf::kTensor) {
      groups.push_back({i});
    } else {
      groups[0].push_back(i);
    }
  }
  return groups;
}

void AddUnsent(HookWorld& world, const ResumedRun& run, Gradients& sum) {
  AddTo(sum, MeanError(world.Save(), ResumeModel(run.dtype), world.size()));
}

// Steps of both runs. `groups`: what norms are taken of.
Distance Compare(const ResumedRun& run, HookWorld& saved, HookWorld& resumed,
                 int64_t from, const std::vector<std::vector<int>>& groups) {
  Distance distance;
  Gradients sum, resumed_sum;
  for (int64_t step = from; step < from + kStepsAfter; ++step) {
    const Gradients expected = StepOf(saved, run, step);
    const Gradients got = StepOf(resumed, run, step);
    const double far = WorstGroup(got, expected, groups);
    if (step == from) distance.first = far;
    distance.later = std::max(distance.later, far);
    AddTo(sum, expected);
    AddTo(resumed_sum, got);
  }
  AddUnsent(saved, run, sum);
  AddUnsent(resumed, run, resumed_sum);
  distance.in_sum = RelativeDifference(resumed_sum, sum);
  return distance;
}

}  // namespace

void TakeLarger(const Distance& other, Distance& distance) {
  distance.first = std::max(distance.first, other.first);
  distance.later = std::max(distance.later, other.later);
  distance.in_sum = std::max(distance.in_sum, other.in_sum);
}

Distance Resume(const ResumedRun& run, const SaveAndLoad& reload) {
  std::unique_ptr<HookWorld> going_on = MakeWorld(run, 0);
  int64_t step = 0;
  for (; step < kStepsBefore; ++step) StepOf(*going_on, run, step);
  HookState state = reload(*going_on, step);
  Distance largest;
  for (size_t i = 1; i < run.sizes.size(); ++i) {
    std::unique_ptr<HookWorld> resumed = MakeWorld(run, i);
    EXPECT_OK(resumed->Load(state));
    EXPECT_EQ(resumed->hook(0).step(), step);
    const bool last = i + 1 == run.sizes.size();
    if (last || !run.at_once) {
      TakeLarger(Compare(run, *going_on, *resumed, step, Groups(run, i)),
                 largest);
      step += kStepsAfter;
    }
    if (!last) state = reload(*resumed, step);
    if (!run.at_once) going_on = std::move(resumed);
  }
  return largest;
}

}  // namespace coxswain
