#include "server/plan/plan_record.h"

#include "base/schedule_terms.h"
#include "base/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/types.pb.h"
#include "schedule/schedule_wire.h"

namespace coxswain::server {

std::string EncodePlan(const Plan& plan) {
  std::string record;
  google::protobuf::io::StringOutputStream text(&record);
  google::protobuf::io::CodedOutputStream coded(&text);
  // Equal plans are equal records, in whatever order their terms lie.
  coded.SetSerializationDeterministic(true);
  schedule::ToWire(plan).SerializeToCodedStream(&coded);
  coded.Trim();
  return record;
}

absl::StatusOr<Plan> DecodePlan(absl::string_view record) {
  v1::Plan proto;
  if (!proto.ParseFromString(std::string(record))) {
    return absl::InvalidArgumentError("it is no plan");
  }
  Plan plan;
  plan.version = proto.version();
  plan.accumulation_steps = proto.accumulation_steps();
  plan.hook = proto.hook();
  plan.compression_start_step = proto.compression_start_step();
  plan.global_micro_batches = proto.global_micro_batches();
  plan.at_step = proto.at_step();
  COXSWAIN_RETURN_IF_ERROR(CheckPlan(plan));
  COXSWAIN_ASSIGN_OR_RETURN(
      plan.terms,
      ScheduleTerms::FromMap({proto.terms().begin(), proto.terms().end()}));
  return plan;
}

}  // namespace coxswain::server
