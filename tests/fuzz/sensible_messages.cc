#include "tests/fuzz/sensible_messages.h"

#include "base/crc32c.h"
#include "proto/checkpoint.pb.h"
#include "proto/group.pb.h"
#include "proto/parameter.pb.h"
#include "proto/rendezvous.pb.h"
#include "proto/schedule.pb.h"
#include "proto/store.pb.h"

namespace coxswain {
namespace {

// What shards and collectives consist of: two numbers.
constexpr char kBytes[] = "\0\0\x80\x3f\0\0\0\x40";
constexpr int64_t kSize = 8;

v1::Fence FenceOf(Knowledge* known, FuzzBytes* bytes) {
  v1::Fence fence = known->fences[bytes->Below(2)];
  fence.set_request_id(++known->requests);
  return fence;
}

v1::Fence OperatorFence(Knowledge* known) {
  v1::Fence fence = known->fences[0];
  fence.set_generation(0);
  fence.set_incarnation(0);
  fence.set_request_id(++known->requests);
  return fence;
}

void FillChunk(int64_t offset, v1::Chunk* chunk) {
  const std::string data(kBytes, kSize);
  chunk->set_offset(offset);
  chunk->set_data(data);
  chunk->set_crc32c(Crc32c(data));
}

template <typename Message>
std::unique_ptr<Message> Fenced(Knowledge* known, FuzzBytes* bytes) {
  auto message = std::make_unique<Message>();
  *message->mutable_fence() = FenceOf(known, bytes);
  return message;
}

template <typename Message>
MessagePtr OfJob(Knowledge*, int, FuzzBytes*) {
  auto message = std::make_unique<Message>();
  message->set_job("mnist");
  return message;
}

template <typename Message>
MessagePtr OfCheckpoint(Knowledge* known, int, FuzzBytes*) {
  auto message = std::make_unique<Message>();
  message->set_job("mnist");
  message->set_checkpoint_id(known->checkpoint);
  return message;
}

template <typename Message>
MessagePtr OfKey(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<Message>(known, bytes);
  message->set_key(bytes->Below(2) == 0 ? "a" : "b");
  return message;
}

MessagePtr CountKeys(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::CountKeysRequest>(known, bytes);
  message->set_prefix(bytes->Below(2) == 0 ? "" : "a");
  return message;
}

MessagePtr Join(Knowledge*, int, FuzzBytes* bytes) {
  auto message = std::make_unique<v1::JoinRequest>();
  const int slot = static_cast<int>(bytes->Below(4));
  message->set_job(bytes->Below(2) == 0 ? "mnist" : "another");
  message->mutable_identity()->set_node("host");
  message->mutable_identity()->set_slot(slot);
  message->set_incarnation(101 + static_cast<uint64_t>(slot));
  message->set_launcher_id(7);
  message->set_host("host");
  message->set_address("host:1234");
  message->set_timeout_ms(60'000);
  v1::Manifest& manifest = *message->mutable_manifest();
  manifest.set_world_size(2);
  manifest.set_min_world_size(1);
  manifest.set_hook("allreduce");
  manifest.set_accumulation_steps(1);
  v1::ParameterInfo& parameter = *manifest.add_parameters();
  parameter.set_name("weight");
  parameter.add_shape(2);
  parameter.add_shape(3);
  parameter.set_dtype("float32");
  return message;
}

MessagePtr Attach(Knowledge* known, int number, FuzzBytes* bytes) {
  auto message = std::make_unique<v1::AttachRequest>();
  if (number == 0) {
    *message->mutable_hello()->mutable_fence() = FenceOf(known, bytes);
    return message;
  }
  const int64_t round = static_cast<int64_t>(bytes->Below(3));
  switch (bytes->Below(8)) {
    case 0:
      message->mutable_heartbeat()->set_step(round);
      break;
    case 1:
      message->mutable_vote()->set_stream("train");
      message->mutable_vote()->set_round(round);
      message->mutable_vote()->set_commit(true);
      break;
    case 2:
      message->mutable_position()->mutable_last()->set_stream("train");
      message->mutable_position()->mutable_last()->set_round(round);
      message->mutable_position()->mutable_last()->set_commit(true);
      break;
    case 3:
      message->mutable_fallback_report()->set_fallback_epoch(round);
      break;
    case 4:
      message->mutable_peers_broken()->add_ranks(1);
      break;
    default:
      v1::Ticket& ticket = *message->mutable_ticket();
      ticket.set_stream("train");
      ticket.set_round(round);
      ticket.set_step(round);
      ticket.set_micro_batches(1);
      ticket.set_window(1);
      ticket.set_weight(1);
      ticket.set_plan_version(1);
      ticket.set_hook("allreduce");
  }
  return message;
}

MessagePtr Leave(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::LeaveRequest>(known, bytes);
  message->set_reason("done");
  message->set_rejoin(bytes->Below(2) == 1);
  static constexpr const char* kStreams[] = {"train", "a", "!!"};
  for (size_t i = bytes->Below(4); i > 0; --i) {
    v1::Decision& last = *message->add_positions()->mutable_last();
    last.set_stream(kStreams[bytes->Below(3)]);
    last.set_round(static_cast<int64_t>(bytes->Number()));
    last.set_commit(true);
    if (bytes->Below(2) == 0) continue;
    last.mutable_plan()->set_version(1);
    last.mutable_plan()->set_at_step(static_cast<int64_t>(bytes->Number()));
  }
  message->set_fallback_epoch(static_cast<int64_t>(bytes->Number()));
  return message;
}

MessagePtr ReportExit(Knowledge*, int, FuzzBytes* bytes) {
  auto message = std::make_unique<v1::ReportExitRequest>();
  const int slot = static_cast<int>(bytes->Below(3));
  message->set_job("mnist");
  message->set_launcher_id(7);
  message->mutable_identity()->set_node("host");
  message->mutable_identity()->set_slot(slot);
  message->set_incarnation(101 + static_cast<uint64_t>(slot));
  return message;
}

MessagePtr Members(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::MembersRequest>(known, bytes);
  message->set_count(10);
  return message;
}

MessagePtr ProposePlan(Knowledge* known, int, FuzzBytes*) {
  auto message = std::make_unique<v1::ProposePlanRequest>();
  *message->mutable_fence() = OperatorFence(known);
  message->set_job("mnist");
  message->set_expected_version(1);
  message->mutable_plan()->set_accumulation_steps(2);
  message->mutable_plan()->set_hook("allreduce");
  message->mutable_plan()->set_compression_start_step(-1);
  message->mutable_plan()->set_at_step(-1);
  return message;
}

MessagePtr RequestCheckpoint(Knowledge* known, int, FuzzBytes*) {
  auto message = std::make_unique<v1::RequestCheckpointRequest>();
  *message->mutable_fence() = OperatorFence(known);
  message->set_job("mnist");
  message->set_reason("now");
  return message;
}

MessagePtr CreateGroup(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::CreateGroupRequest>(known, bytes);
  message->set_name("pair");
  message->add_ranks(0);
  message->add_ranks(1);
  return message;
}

MessagePtr CreateMesh(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::CreateMeshRequest>(known, bytes);
  message->set_name("mesh");
  for (const int size : {2, 1}) {
    v1::MeshAxis& axis = *message->add_axes();
    axis.set_name(size == 2 ? "data" : "model");
    axis.set_size(size);
  }
  if (bytes->Below(2) == 1) {
    v1::JoinedAxes& joined = *message->add_joined();
    joined.add_names("data");
    joined.add_names("model");
  }
  return message;
}

MessagePtr Barrier(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::BarrierRequest>(known, bytes);
  if (bytes->Below(2) == 1) message->set_group("pair");
  message->set_tag("tag");
  message->set_timeout_ms(1000);
  return message;
}

MessagePtr Set(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::SetRequest>(known, bytes);
  message->set_key("a");
  message->set_value("1");
  return message;
}

MessagePtr Add(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::AddRequest>(known, bytes);
  message->set_key("a");
  message->set_amount(static_cast<int64_t>(bytes->Number()));
  return message;
}

MessagePtr CompareSet(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::CompareSetRequest>(known, bytes);
  message->set_key("b");
  message->set_desired("2");
  return message;
}

MessagePtr Wait(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::WaitRequest>(known, bytes);
  message->add_keys("a");
  message->add_keys("b");
  message->set_timeout_ms(1000);
  return message;
}

MessagePtr Begin(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::BeginRequest>(known, bytes);
  message->set_step(static_cast<int64_t>(bytes->Below(4)));
  message->set_shards(1);
  if (bytes->Below(4) == 3) {
    *message->mutable_fence() = OperatorFence(known);
    message->mutable_import()->set_created_unix_ms(1000);
  }
  return message;
}

MessagePtr Upload(Knowledge* known, int number, FuzzBytes* bytes) {
  auto message = std::make_unique<v1::UploadRequest>();
  if (number > 0) {
    FillChunk((number - 1) * kSize, message->mutable_chunk());
    return message;
  }
  v1::UploadHeader& header = *message->mutable_header();
  *header.mutable_fence() = FenceOf(known, bytes);
  header.set_checkpoint_id(known->checkpoint);
  header.set_bytes(kSize);
  header.set_crc32c(Crc32c(absl::string_view(kBytes, kSize)));
  return message;
}

MessagePtr Commit(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::CommitRequest>(known, bytes);
  message->set_checkpoint_id(known->checkpoint);
  return message;
}

MessagePtr Delete(Knowledge* known, int, FuzzBytes* bytes) {
  auto message = Fenced<v1::DeleteRequest>(known, bytes);
  message->set_checkpoint_id(known->checkpoint);
  return message;
}

MessagePtr Exchange(Knowledge* known, int number, FuzzBytes* bytes) {
  auto message = std::make_unique<v1::ExchangeRequest>();
  if (number == 0) {
    const int rank = static_cast<int>(bytes->Below(2));
    v1::ExchangeOpen& open = *message->mutable_open();
    *open.mutable_fence() = known->fences[rank];
    open.set_group("group");
    open.set_rank(rank);
    open.set_size(2);
    return message;
  }
  v1::ExchangeOperation& operation = *message->mutable_operation();
  operation.set_id(static_cast<uint64_t>(number));
  operation.set_name("t");
  operation.set_version(number);
  operation.set_reduction(v1::REDUCTION_SUM);
  operation.set_dtype("float32");
  operation.set_bytes(kSize);
  operation.set_root(-1);
  operation.set_peer(-1);
  operation.mutable_range()->set_bytes(kSize);
  operation.mutable_range()->set_stride(kSize);
  operation.mutable_range()->set_count(1);
  operation.set_timeout_ms(1000);
  FillChunk(0, message->mutable_chunk());
  return message;
}

constexpr RpcMethod kAttach = {"/coxswain.v1.Rendezvous/Attach", true, Attach};
constexpr RpcMethod kUpload = {"/coxswain.v1.Checkpoint/Upload", true, Upload};
constexpr RpcMethod kExchange = {"/coxswain.v1.Parameter/Exchange", true,
                                 Exchange};

}  // namespace

const std::vector<RpcMethod>& StreamMethods() {
  static const auto* const methods =
      new std::vector<RpcMethod>{kAttach, kUpload, kExchange};
  return *methods;
}

const std::vector<RpcMethod>& RpcMethods() {
  static const auto* const methods = new std::vector<RpcMethod>{
      {"/coxswain.v1.Rendezvous/Join", false, Join},
      kAttach,
      {"/coxswain.v1.Rendezvous/Leave", false, Leave},
      {"/coxswain.v1.Rendezvous/ReportExit", false, ReportExit},
      {"/coxswain.v1.Rendezvous/Members", false, Members},
      {"/coxswain.v1.Rendezvous/Describe", false, OfJob<v1::DescribeRequest>},
      {"/coxswain.v1.Schedule/GetPlan", false, OfJob<v1::GetPlanRequest>},
      {"/coxswain.v1.Schedule/ProposePlan", false, ProposePlan},
      {"/coxswain.v1.Schedule/RequestCheckpoint", false, RequestCheckpoint},
      {"/coxswain.v1.Schedule/Why", false, OfJob<v1::WhyRequest>},
      {"/coxswain.v1.Group/CreateGroup", false, CreateGroup},
      {"/coxswain.v1.Group/CreateMesh", false, CreateMesh},
      {"/coxswain.v1.Group/Barrier", false, Barrier},
      {"/coxswain.v1.Store/Set", false, Set},
      {"/coxswain.v1.Store/Get", false, OfKey<v1::GetRequest>},
      {"/coxswain.v1.Store/Add", false, Add},
      {"/coxswain.v1.Store/CompareSet", false, CompareSet},
      {"/coxswain.v1.Store/Wait", false, Wait},
      {"/coxswain.v1.Store/DeleteKey", false, OfKey<v1::DeleteKeyRequest>},
      {"/coxswain.v1.Store/CountKeys", false, CountKeys},
      {"/coxswain.v1.Store/Watch", false, OfKey<v1::WatchRequest>},
      {"/coxswain.v1.Checkpoint/Begin", false, Begin},
      kUpload,
      {"/coxswain.v1.Checkpoint/Commit", false, Commit},
      {"/coxswain.v1.Checkpoint/List", false, OfJob<v1::ListRequest>},
      {"/coxswain.v1.Checkpoint/Show", false, OfCheckpoint<v1::ShowRequest>},
      {"/coxswain.v1.Checkpoint/Verify", false,
       OfCheckpoint<v1::VerifyRequest>},
      {"/coxswain.v1.Checkpoint/Download", false,
       OfCheckpoint<v1::DownloadRequest>},
      {"/coxswain.v1.Checkpoint/Delete", false, Delete},
      kExchange,
  };
  return *methods;
}

}  // namespace coxswain
