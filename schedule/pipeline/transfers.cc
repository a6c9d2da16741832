// What messages the passes of a schedule need.
#include <algorithm>

#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {
namespace {

bool AreApart(const Schedule& schedule, int stage, int other) {
  return other >= 0 && other < schedule.stages() &&
         schedule.rank_of_stage(stage) != schedule.rank_of_stage(other);
}

// Appends the receive, or the send, of a pass if it has one.
void AppendReceive(const Schedule& schedule, const Action& pass,
                   Schedule::Actions* list) {
  const bool forward = pass.kind == ActionKind::kForward;
  if (pass.kind == ActionKind::kBackwardWeight) return;
  if (AreApart(schedule, pass.stage, pass.stage + (forward ? -1 : 1))) {
    list->push_back(
        {pass.stage, pass.micro_batch,
         forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward});
  }
}
void AppendSend(const Schedule& schedule, const Action& pass,
                Schedule::Actions* list) {
  const bool forward = pass.kind == ActionKind::kForward;
  if (pass.kind == ActionKind::kBackwardWeight) return;
  if (AreApart(schedule, pass.stage, pass.stage + (forward ? 1 : -1))) {
    list->push_back(
        {pass.stage, pass.micro_batch,
         forward ? ActionKind::kSendForward : ActionKind::kSendBackward});
  }
}

}  // namespace

absl::StatusOr<Schedule> WithTransfers(const Schedule& schedule) {
  if (schedule.has_transfers()) return schedule;
  std::vector<Schedule::Actions> of_rank;
  of_rank.reserve(schedule.of_rank().size());
  for (const Schedule::Actions& actions : schedule.of_rank()) {
    Schedule::Actions& list = of_rank.emplace_back();
    list.reserve(3 * actions.size());
    for (size_t at = 0; at < actions.size();) {
      if (!IsCompute(actions[at].kind)) {
        list.push_back(actions[at++]);
        continue;
      }
      // Of what runs at the same time: all receives, all passes, all sends.
      const size_t end = at + std::max<size_t>(1, actions[at].overlap);
      for (size_t i = at; i < end; ++i) {
        AppendReceive(schedule, actions[i], &list);
      }
      list.insert(list.end(), actions.begin() + at, actions.begin() + end);
      for (size_t i = at; i < end; ++i) {
        AppendSend(schedule, actions[i], &list);
      }
      at = end;
    }
  }
  return Schedule::Create(std::move(of_rank));
}

}  // namespace coxswain::pipeline
