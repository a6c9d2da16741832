#include "client/schedule/step_timings.h"

#include <algorithm>
#include <utility>

namespace coxswain {
namespace {

// A step has a grant and a decision. A gate that is asked again and again is
// not followed for ever.
constexpr size_t kMaxWaits = 16;

absl::Duration Overlap(absl::Time from, absl::Time to, absl::Time least,
                       absl::Time most) {
  const absl::Duration shared = std::min(to, most) - std::max(from, least);
  return std::max(shared, absl::ZeroDuration());
}

double Seconds(absl::Duration duration) {
  return absl::ToDoubleSeconds(std::max(duration, absl::ZeroDuration()));
}

}  // namespace

void StepTimings::Begun(int64_t step, absl::Time now,
                        absl::FunctionRef<Traffic()> traffic) {
  MutexLock lock(&mutex_);
  if (!ended_.has_value()) traffic_ = traffic();
  open_ = Open();
  open_->step = step;
  open_->since = ended_.value_or(now);
  open_->before = traffic_;
}

void StepTimings::Waited(absl::Time from, absl::Time to) {
  MutexLock lock(&mutex_);
  if (!open_.has_value() || open_->waits.size() >= kMaxWaits) return;
  open_->waits.push_back({from, to});
}

void StepTimings::Decided(absl::Time from, absl::Time to) {
  Waited(from, to);
  MutexLock lock(&mutex_);
  if (open_.has_value()) open_->decided = true;
}

bool StepTimings::Over() {
  MutexLock lock(&mutex_);
  return OverLocked();
}

void StepTimings::Exchanged(absl::Time from, absl::Time to) {
  MutexLock lock(&mutex_);
  if (open_.has_value()) open_->exchanged = Interval{from, to};
}

void StepTimings::Ended(absl::Time now, const Traffic& traffic) {
  MutexLock lock(&mutex_);
  if (!OverLocked()) return;
  const Open step = *std::exchange(open_, std::nullopt);
  absl::Duration wait, within;
  for (const Interval& interval : step.waits) {
    wait += Overlap(interval.from, interval.to, step.exchanged->from, now);
    within += Overlap(interval.from, interval.to, step.exchanged->from,
                      step.exchanged->to);
  }
  const absl::Duration exchange = std::max(
      step.exchanged->to - step.exchanged->from - within, absl::ZeroDuration());
  v1::StepTiming timing;
  timing.set_step(step.step);
  timing.set_wait(Seconds(wait));
  timing.set_exchange(Seconds(exchange));
  timing.set_compute(Seconds(now - step.since - wait - exchange));
  timing.set_payload_bytes(
      std::max<int64_t>(traffic.payload_bytes - step.before.payload_bytes, 0));
  timing.set_wire_bytes(
      std::max<int64_t>(traffic.wire_bytes - step.before.wire_bytes, 0));
  ended_ = now;
  traffic_ = traffic;
  PutLocked(std::move(timing));
}

void StepTimings::PutLocked(v1::StepTiming timing) {
  if (!done_.empty() && done_.back().step() == timing.step()) {
    v1::StepTiming& last = done_.back();
    last.set_compute(last.compute() + timing.compute());
    last.set_wait(last.wait() + timing.wait());
    last.set_exchange(last.exchange() + timing.exchange());
    last.set_payload_bytes(last.payload_bytes() + timing.payload_bytes());
    last.set_wire_bytes(last.wire_bytes() + timing.wire_bytes());
    return;
  }
  if (done_.size() >= kMost) done_.pop_front();
  done_.push_back(std::move(timing));
}

void StepTimings::AddTo(v1::Heartbeat* heartbeat) {
  MutexLock lock(&mutex_);
  for (v1::StepTiming& timing : done_) {
    *heartbeat->add_steps() = std::move(timing);
  }
  done_.clear();
}

}  // namespace coxswain
