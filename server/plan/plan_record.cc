#include "server/plan/plan_record.h"

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/types.pb.h"
#include "schedule/schedule_wire.h"

namespace coxswain::server {

std::string EncodePlan(const schedule::Plan& plan) {
  std::string record;
  google::protobuf::io::StringOutputStream text(&record);
  google::protobuf::io::CodedOutputStream coded(&text);
  // Equal plans are equal records, in whatever order their terms lie.
  coded.SetSerializationDeterministic(true);
  schedule::ToWire(plan).SerializeToCodedStream(&coded);
  coded.Trim();
  return record;
}

absl::StatusOr<schedule::Plan> DecodePlan(absl::string_view record) {
  v1::Plan proto;
  if (!proto.ParseFromString(std::string(record))) {
    return absl::InvalidArgumentError("it is no plan");
  }
  return schedule::PlanFromWire(proto);
}

}  // namespace coxswain::server
