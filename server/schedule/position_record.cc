#include "server/schedule/position_record.h"

#include <utility>

#include "base/peer_text.h"
#include "base/status_macros.h"
#include "proto/state.pb.h"
#include "schedule/bounds.h"
#include "schedule/schedule_wire.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

using Proto = state::v1::Position;

}  // namespace

std::string EncodePosition(const schedule::Decision& decision) {
  Proto proto;
  proto.set_round(decision.round);
  proto.set_step(decision.step);
  proto.set_next_step_known(decision.next_step.has_value());
  proto.set_next_step(decision.next_step.value_or(0));
  proto.set_outcome(decision.commit ? Proto::COMMIT : Proto::SKIP);
  proto.set_reason(decision.reason);
  proto.set_stop(decision.stop);
  proto.set_regroup(decision.regroup);
  proto.set_checkpoint(decision.checkpoint);
  if (decision.plan.has_value()) {
    *proto.mutable_plan() = schedule::ToWire(*decision.plan);
  }
  if (decision.sums) *proto.mutable_sums() = schedule::ToWire(*decision.sums);
  return SerializeRecord(proto);
}

absl::StatusOr<schedule::Decision> DecodePosition(absl::string_view record) {
  Proto proto;
  if (!ParseRecord(record, &proto) ||
      (proto.outcome() != Proto::COMMIT && proto.outcome() != Proto::SKIP)) {
    return absl::InvalidArgumentError("it is no position");
  }
  schedule::Decision decision;
  decision.round = proto.round();
  decision.step = proto.step();
  if (proto.next_step_known()) decision.next_step = proto.next_step();
  decision.commit = proto.outcome() == Proto::COMMIT;
  decision.reason = std::move(*proto.mutable_reason());
  decision.stop = std::move(*proto.mutable_stop());
  decision.regroup = std::move(*proto.mutable_regroup());
  decision.checkpoint = std::move(*proto.mutable_checkpoint());
  // Records of earlier versions may have more.
  for (std::string* text : {&decision.reason, &decision.stop, &decision.regroup,
                            &decision.checkpoint}) {
    *text = Shorten(*text, schedule::kMaxDecisionTextBytes);
  }
  if (proto.has_plan()) {
    COXSWAIN_ASSIGN_OR_RETURN(decision.plan,
                              schedule::PlanFromWire(proto.plan()));
  }
  if (proto.has_sums()) decision.sums = schedule::SumsFromWire(proto.sums());
  COXSWAIN_RETURN_IF_ERROR(schedule::CheckPosition(decision));
  return decision;
}

}  // namespace coxswain::server
