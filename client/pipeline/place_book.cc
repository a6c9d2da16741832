#include "client/pipeline/place_book.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace coxswain {
namespace {

double MedianOf(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double& Of(StagePasses& passes, pipeline::ActionKind kind) {
  switch (kind) {
    case pipeline::ActionKind::kForward:
      return passes.forward;
    case pipeline::ActionKind::kBackwardInput:
      return passes.backward_input;
    case pipeline::ActionKind::kBackwardWeight:
      return passes.backward_weight;
    default:
      return passes.backward;
  }
}

}  // namespace

void PlaceBook::Begin(int micro_batches, uint64_t schedule, bool measured) {
  kept_.clear();
  MutexLock lock(&mutex_);
  ++place_.step;
  place_.action = 0;
  place_.micro_batches = micro_batches;
  place_.schedule = schedule;
  measured_ = measured;
  since_ = clock_->Now();
  in_action_ = false;
}

void PlaceBook::Pass(int actions, int micro_batches, uint64_t schedule) {
  Begin(micro_batches, schedule);
  End(actions);
}

void PlaceBook::Leave(absl::Time now) {
  if (!in_action_) return;
  in_action_ = false;
  if (kept_.size() < most_kept_) kept_.push_back({action_, since_, now});
  if (!measured_ || !pipeline::IsCompute(action_.kind)) return;
  LastTimes& last = times_[{action_.stage, action_.kind}];
  const double seconds = absl::ToDoubleSeconds(now - since_);
  if (last.seconds.size() < kKeptPasses) {
    last.seconds.push_back(seconds);
    return;
  }
  last.seconds[last.next] = seconds;
  last.next = (last.next + 1) % kKeptPasses;
}

void PlaceBook::Enter(int at, const pipeline::Action& action) {
  const absl::Time now = clock_->Now();
  MutexLock lock(&mutex_);
  Leave(now);
  place_.action = at;
  action_ = action;
  in_action_ = true;
  since_ = now;
}

void PlaceBook::End(int actions) {
  const absl::Time now = clock_->Now();
  MutexLock lock(&mutex_);
  Leave(now);
  place_.action = actions;
  since_ = now;
}

void PlaceBook::Fail() {
  MutexLock lock(&mutex_);
  in_action_ = false;
}

PipelinePlace PlaceBook::place() const {
  const absl::Time now = clock_->Now();
  MutexLock lock(&mutex_);
  PipelinePlace place = place_;
  if (place.step < 0) return place;
  place.in_it = std::max(now - since_, absl::ZeroDuration());
  for (const auto& [key, last] : times_) {
    if (place.passes.empty() || place.passes.back().stage != key.first) {
      if (place.passes.size() == PipelinePlace::kMaxStages) break;
      place.passes.push_back({key.first});
    }
    Of(place.passes.back(), key.second) = MedianOf(last.seconds);
  }
  return place;
}

std::vector<TimedAction> PlaceBook::TakeActions() { return std::move(kept_); }

}  // namespace coxswain
