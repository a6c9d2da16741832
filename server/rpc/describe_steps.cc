#include "server/rpc/describe_steps.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "server/telemetry/stragglers.h"

namespace coxswain::server {
namespace {

v1::StepTiming ToProto(const StepTiming& timing) {
  v1::StepTiming proto;
  proto.set_step(timing.step);
  proto.set_compute(timing.compute);
  proto.set_wait(timing.wait);
  proto.set_exchange(timing.exchange);
  proto.set_payload_bytes(timing.payload_bytes);
  proto.set_wire_bytes(timing.wire_bytes);
  return proto;
}

void AddHooks(const JobTelemetry& totals, v1::JobDescription* job) {
  for (const auto& [name, traffic] : totals.hooks) {
    v1::HookTraffic* const hook = job->add_hooks();
    hook->set_hook(name);
    hook->set_gradient_bytes(traffic.gradient_bytes);
    hook->set_payload_bytes(traffic.payload_bytes);
    hook->set_wire_bytes(traffic.wire_bytes);
  }
}

}  // namespace

void AddSteps(const Telemetry& telemetry, int steps, v1::JobDescription* job) {
  const std::optional<JobTelemetry> totals = telemetry.Totals(job->job());
  if (!totals.has_value()) return;
  AddHooks(*totals, job);
  const StepMatrix recent = telemetry.Matrix(job->job(), kStragglerSteps);
  for (const int rank : PersistentStragglers(SummariseSteps(recent))) {
    job->add_stragglers(rank);
  }
  std::vector<int> ranks;
  for (const v1::MemberDescription& member : job->members()) {
    ranks.push_back(member.member().rank());
  }
  if (ranks.empty() || recent.steps == 0) return;
  const int64_t room = kMaxDescribedTimings / job->members_size();
  const int64_t last = std::clamp<int64_t>(std::min(steps, kMaxDescribedSteps),
                                           1, std::max<int64_t>(room, 1));
  const int64_t newest =
      recent.first_step + static_cast<int64_t>(recent.steps) - 1;
  const auto timings = telemetry.Timings(
      job->job(), ranks, std::max<int64_t>(newest - last + 1, 0));
  for (size_t i = 0; i < timings.size(); ++i) {
    v1::MemberDescription* const member =
        job->mutable_members(static_cast<int>(i));
    for (const StepTiming& timing : timings[i]) {
      *member->add_steps() = ToProto(timing);
    }
  }
}

}  // namespace coxswain::server
