#include "server/membership/pipeline_places.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::server {

pipeline::ExplainInput PlacesOf(const std::vector<MemberDescription>& members,
                                const Mesh& mesh,
                                absl::Duration heartbeat_interval) {
  pipeline::ExplainInput input;
  input.silent_after = std::max(input.silent_after, 2 * heartbeat_interval);
  input.mesh = mesh;
  input.ranks.reserve(members.size());
  for (const MemberDescription& member : members) {
    pipeline::RankPlace place;
    place.live = member.state != MemberState::kLeft;
    place.place = member.progress.pipeline;
    place.silence = member.silence;
    place.heard = member.state == MemberState::kAttached && !member.restored;
    input.ranks.push_back(std::move(place));
  }
  input.place_of = [&members](int rank) {
    const auto index = static_cast<size_t>(rank);
    return index < members.size() ? members[index].member.Place() : "";
  };
  return input;
}

int LargestWindow(const schedule::Plan& plan, const Mesh& mesh,
                  int world_size) {
  // The first of them has as many as any.
  return plan.WindowOf(0, DataPlaceOf(mesh, 0, world_size).count);
}

std::string PlaceWhenLost(const schedule::Plan& plan, const Mesh& mesh,
                          const std::vector<MemberDescription>& members,
                          absl::Duration heartbeat_interval, int lost) {
  const auto index = static_cast<size_t>(lost);
  if (plan.terms.pipeline.empty() || index >= members.size() ||
      !members[index].progress.pipeline.has_value()) {
    return "";
  }
  pipeline::SchedulesOfJob schedules(
      plan.terms.pipeline, mesh.extent("pp"),
      LargestWindow(plan, mesh, static_cast<int>(members.size())),
      kMostActionsWhenLost);
  pipeline::ExplainInput input = PlacesOf(members, mesh, heartbeat_interval);
  // It does nothing any more: what others wait for from it does not come.
  input.ranks[index].silence = absl::InfiniteDuration();
  const pipeline::Explanation found =
      pipeline::ExplainPipeline(input, &schedules);
  const std::string& in = found.in[index];
  if (in.empty()) return "";
  const pipeline::Holder* const holder = found.HolderOf(lost);
  const int waiters = holder != nullptr ? holder->waiters : 0;
  const std::string waited =
      waiters == 0
          ? ""
          : absl::StrCat(", and ", waiters, waiters == 1 ? " rank" : " ranks",
                         " waited for it");
  return absl::StrCat(
      "it was ", in == pipeline::kBetweenSteps ? in : absl::StrCat("in ", in),
      " of its pipeline", waited);
}

}  // namespace coxswain::server
