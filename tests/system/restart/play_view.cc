// What a play compares: all that is stored, and all that clients are shown.
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/system/restart/play.h"

namespace coxswain {
namespace {

// Of what has changed, in messages.
constexpr size_t kShown = 2000;

// Without what a coordinator only has in memory: heartbeats, connections.
v1::MemberDescription Lasting(const v1::MemberDescription& member) {
  v1::MemberDescription lasting;
  *lasting.mutable_member() = member.member();
  const bool ended = member.state() == "left" || member.state() == "lost";
  lasting.set_state(ended ? member.state() : "here");
  return lasting;
}

v1::JobDescription Lasting(const v1::JobDescription& job) {
  v1::JobDescription lasting;
  lasting.set_job(job.job());
  lasting.set_state(job.state());
  lasting.set_generation(job.generation());
  lasting.set_attempt(job.attempt());
  lasting.set_last_event(job.last_event());
  *lasting.mutable_plan() = job.plan();
  if (job.state() != "running") return lasting;
  lasting.set_world_size(job.world_size());
  lasting.set_min_world_size(job.min_world_size());
  for (const v1::MemberDescription& member : job.members()) {
    *lasting.add_members() = Lasting(member);
  }
  return lasting;
}

}  // namespace

void Play::AddJobs(View* view) {
  const v1::DescribeResponse described = server_.Describe();
  (*view)["cluster"] = described.cluster_id();
  for (const v1::JobDescription& job : described.jobs()) {
    // Rounds are not kept.
    if (job.generation() == 0) continue;
    (*view)[absl::StrCat("job/", job.job())] = Lasting(job).DebugString();
    (*view)[absl::StrCat("plan/", job.job())] =
        server_.PlanOf(job.job()).DebugString();
    AddCheckpoints(job.job(), view);
  }
  AddCheckpoints(kImported, view);
}

void Play::AddCheckpoints(const std::string& job, View* view) {
  Context context;
  v1::ListRequest request;
  v1::ListResponse response;
  request.set_job(job);
  EXPECT_TRUE(server_.checkpoint().List(&context, request, &response).ok());
  for (const v1::CheckpointInfo& info : response.checkpoints()) {
    (*view)[absl::StrCat("checkpoint/", job, "/", info.checkpoint_id())] =
        info.DebugString();
  }
}

Play::View Play::Look(bool stored) {
  View view;
  AddJobs(&view);
  if (!stored) return view;
  const auto tables = state_->store().Tables("");
  for (const std::string& table : *tables) {
    const auto records = state_->store().List(table);
    for (const auto& [key, value] : *records) {
      view[absl::StrCat("stored/", table, "/", absl::CHexEscape(key))] = value;
    }
  }
  return view;
}

void Play::ExpectSame(const View& before, const View& after,
                      const std::string& what) {
  const auto value_of = [](const View& view, const std::string& name) {
    const auto found = view.find(name);
    return found == view.end() ? "(nothing)" : found->second;
  };
  View names = before;
  names.insert(after.begin(), after.end());
  for (const auto& entry : names) {
    const std::string was = value_of(before, entry.first);
    const std::string is = value_of(after, entry.first);
    if (was == is) continue;
    ADD_FAILURE() << what << " has changed " << entry.first << " from\n"
                  << was.substr(0, kShown) << "\nto\n"
                  << is.substr(0, kShown);
  }
}

absl::Status Play::Do(const std::string& rpc,
                      const std::function<absl::Status()>& send) {
  const View before = Look(/*stored=*/true);
  const absl::Status status = send();
  Outcomes& outcomes = outcomes_[rpc];
  if (status.ok()) {
    ++outcomes.accepted;
    return status;
  }
  ++outcomes.refused;
  ExpectSame(before, Look(/*stored=*/true),
             absl::StrCat("a refused ", rpc, " (",
                          status.ToString().substr(0, kShown), ")"));
  return status;
}

}  // namespace coxswain
