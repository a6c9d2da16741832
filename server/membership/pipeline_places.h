#ifndef COXSWAIN_SERVER_MEMBERSHIP_PIPELINE_PLACES_H_
#define COXSWAIN_SERVER_MEMBERSHIP_PIPELINE_PLACES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/mesh.h"
#include "schedule/pipeline/explain.h"
#include "schedule/plan.h"
#include "server/membership/member_table.h"
#include "server/membership/membership_types.h"

namespace coxswain::server {

// Returns what is known of the members' places in their pipelines, now.
pipeline::ExplainInput PlacesOf(const std::vector<MemberDescription>& members,
                                const Mesh& mesh,
                                absl::Duration heartbeat_interval);

// Returns how many micro-batches the largest window of a step has.
int LargestWindow(const schedule::Plan& plan, const Mesh& mesh, int world_size);

// Returns what a member was in when it was lost, and how many waited for it:
// "it was in 2F7 of its pipeline, and 6 ranks waited for it". Empty: that is
// not known, or the plan has no pipeline, or a schedule of more than
// kMostActionsWhenLost: others wait meanwhile.
std::string PlaceWhenLost(const schedule::Plan& plan, const Mesh& mesh,
                          const std::vector<MemberDescription>& members,
                          absl::Duration heartbeat_interval, int lost);
inline constexpr int64_t kMostActionsWhenLost = 4096;

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_MEMBERSHIP_PIPELINE_PLACES_H_
