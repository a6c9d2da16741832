#include "server/plan/plan_record.h"

#include "proto/types.pb.h"
#include "schedule/schedule_wire.h"
#include "server/state/record.h"

namespace coxswain::server {

std::string EncodePlan(const schedule::Plan& plan) {
  return SerializeRecord(schedule::ToWire(plan));
}

absl::StatusOr<schedule::Plan> DecodePlan(absl::string_view record) {
  v1::Plan proto;
  if (!ParseRecord(record, &proto)) {
    return absl::InvalidArgumentError("it is no plan");
  }
  return schedule::PlanFromWire(proto);
}

}  // namespace coxswain::server
