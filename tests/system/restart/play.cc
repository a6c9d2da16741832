#include "tests/system/restart/play.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "schedule/schedule_wire.h"
#include "tests/system/restart/random_requests.h"

namespace coxswain {
namespace {

constexpr char kTrain[] = "train";
constexpr int kRequests = 50;
// What is wrong with a request is found at once: then the next is tried.
constexpr int kTries = 200;

// One call of a unary rpc.
template <typename Stub, typename Request, typename Response>
absl::Status Call(Stub* stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*,
                                               const Request&, Response*),
                  const Request& request, Response* response) {
  Context context;
  return FromGrpcStatus((stub->*method)(&context, request, response));
}

// Sends a request of rank 0 or 1 for the first time; `repeat` gets the call
// that must be answered alike after the restart.
template <typename Stub, typename Request, typename Response>
std::function<void(const v1::Fence&)> RepeatOf(
    Stub& (WireServer::*stub)(),
    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                 Response*),
    WireServer* server, const Request& request, const Response& first) {
  return [=](const v1::Fence& now) {
    Request again = request;
    again.mutable_fence()->set_term(now.term());
    Response response;
    EXPECT_OK(Call(&(server->*stub)(), method, again, &response))
        << request.ShortDebugString().substr(0, 500);
    EXPECT_EQ(response.SerializeAsString(), first.SerializeAsString())
        << request.ShortDebugString().substr(0, 500);
  };
}

}  // namespace

Play::Play(uint64_t seed, const std::string& folder)
    : dice_(seed),
      state_(std::make_shared<MemoryState>()),
      server_(folder, state_) {}

v1::Fence Play::FenceOf(size_t rank) {
  v1::Fence fence = team_[rank]->Fence();
  fence.set_request_id(++requests_);
  return fence;
}

void Play::Run() {
  ASSERT_OK(server_.Start());
  JoinTeam();
  ASSERT_FALSE(testing::Test::HasFailure());
  for (int i = 0; i < kRequests; ++i) PlayOne();
  PlayOthers();
  LeaveOne();
  const View before = Look(/*stored=*/false);
  server_.Stop(/*in_good_order=*/dice_.Chance(2));
  ASSERT_OK(server_.Start());
  ExpectSame(before, Look(/*stored=*/false), "the restart");
  CheckAfterRestart();
}

template <typename Request, typename Response>
void Play::Declare(const std::string& rpc,
                   grpc::Status (v1::Group::Stub::*method)(grpc::ClientContext*,
                                                           const Request&,
                                                           Response*),
                   Request (*random)(Dice*)) {
  const size_t rank = dice_.Below(2);
  Request request = random(&dice_);
  *request.mutable_fence() = FenceOf(rank);
  Response response;
  const absl::Status status = Do(
      rpc, [&] { return Call(&server_.group(), method, request, &response); });
  if (!status.ok() || rank != 0) return;
  repeats_.push_back(
      RepeatOf(&WireServer::group, method, &server_, request, response));
}

void Play::PlayOne() {
  switch (dice_.Below(10)) {
    case 0:
      return Declare("CreateGroup", &v1::Group::Stub::CreateGroup, RandomGroup);
    case 1:
      return Declare("CreateMesh", &v1::Group::Stub::CreateMesh, RandomMesh);
    case 2:
      return MeetAtBarrier();
    case 3:
      return Propose("job");
    case 4:
      return SaveCheckpoint();
    case 5:
      return Import();
    case 6:
    case 7:
      return Step();
    default:
      return ChangeStore();
  }
}

void Play::JoinTeam() {
  for (int slot = 0; slot < 2; ++slot) {
    team_.push_back(std::make_unique<WireWorker>(&server_, "job", slot));
  }
  absl::Status joined = absl::UnknownError("not yet");
  for (int i = 0; i < kTries && !joined.ok(); ++i) {
    FillJoin(&dice_, 2, &team_[0]->request());
    v1::JoinRequest second = team_[0]->request();
    *second.mutable_identity() = team_[1]->request().identity();
    second.set_incarnation(team_[1]->request().incarnation());
    team_[1]->request() = second;
    joined = Do("Join", [&] {
      absl::Status first;
      std::thread waits([&] { first = team_[0]->Join(); });
      absl::Status both = team_[1]->Join();
      waits.join();
      both.Update(first);
      return both;
    });
  }
  ASSERT_OK(joined);
  plan_ = team_[0]->joined().plan();
  for (const auto& worker : team_) ASSERT_OK(worker->Attach());
}

absl::Status Play::JoinWith(WireWorker* worker) {
  absl::Status joined = absl::UnknownError("not yet");
  for (int i = 0; i < kTries && !joined.ok(); ++i) {
    FillJoin(&dice_, 1, &worker->request());
    joined = Do("Join", [&] { return worker->Join(); });
  }
  return joined;
}

void Play::PlayOthers() {
  const auto others = {"leaves", "fails", "dies", "stays"};
  int slot = 10;
  for (const std::string job : others) {
    WireWorker worker(&server_, job, slot++);
    ASSERT_OK(JoinWith(&worker));
    for (size_t i = dice_.Below(3); i > 0; --i) Propose(job);
    if (job == "dies") {
      v1::ReportExitRequest exit;
      exit.set_job(job);
      exit.set_launcher_id(worker.request().launcher_id());
      *exit.mutable_identity() = worker.request().identity();
      exit.set_incarnation(worker.request().incarnation());
      exit.set_exit_code(static_cast<int32_t>(dice_.Number()));
      exit.set_signal(static_cast<int32_t>(dice_.Number()));
      v1::ReportExitResponse response;
      EXPECT_OK(Do("ReportExit", [&] {
        return Call(&server_.rendezvous(), &v1::Rendezvous::Stub::ReportExit,
                    exit, &response);
      }));
    } else if (job != "stays") {
      v1::LeaveRequest leave;
      leave.set_reason(dice_.Text(1024));
      leave.set_failed(job == "fails");
      leave.set_rejoin(dice_.Chance(2));
      EXPECT_OK(Do("Leave", [&] { return worker.Leave(leave); }));
    }
  }
}

void Play::ChangeStore() {
  const size_t rank = dice_.Below(2);
  const std::string key = dice_.Chance(5)
                              ? std::string(dice_.Chance(2) ? 0 : 1025, 'k')
                              : dice_.UsualText(1024);
  // The changes of one key see each other.
  const std::string value =
      dice_.Chance(3) ? absl::StrCat(dice_.Usual(10)) : dice_.Bytes(200);
  v1::Store::Stub* const stub = &server_.store();
  const auto change = [&](const std::string& rpc, auto method, auto request,
                          auto response) {
    *request.mutable_fence() = FenceOf(rank);
    request.set_key(key);
    const absl::Status status =
        Do(rpc, [&] { return Call(stub, method, request, &response); });
    if (!status.ok() || rank != 0) return;
    repeats_.push_back(
        RepeatOf(&WireServer::store, method, &server_, request, response));
  };
  switch (dice_.Below(4)) {
    case 0: {
      v1::SetRequest request;
      request.set_value(dice_.Chance(20) ? std::string((1 << 20) + 1, 'x')
                                         : value);
      return change("Set", &v1::Store::Stub::Set, request, v1::SetResponse());
    }
    case 1: {
      v1::AddRequest request;
      request.set_amount(dice_.Number());
      return change("Add", &v1::Store::Stub::Add, request, v1::AddResponse());
    }
    case 2: {
      v1::CompareSetRequest request;
      request.set_expected(dice_.Chance(2) ? "" : value);
      request.set_desired(value);
      return change("CompareSet", &v1::Store::Stub::CompareSet, request,
                    v1::CompareSetResponse());
    }
    default:
      return change("DeleteKey", &v1::Store::Stub::DeleteKey,
                    v1::DeleteKeyRequest(), v1::DeleteKeyResponse());
  }
}

void Play::MeetAtBarrier() {
  v1::BarrierRequest requests[2];
  requests[0].set_tag(dice_.Chance(6) ? std::string(257, 't')
                                      : dice_.UsualText(256));
  requests[0].set_timeout_ms(60'000);
  requests[1] = requests[0];
  for (size_t rank : {0, 1}) *requests[rank].mutable_fence() = FenceOf(rank);
  v1::BarrierResponse response;
  const absl::Status status = Do("Barrier", [&] {
    const auto come = [&](size_t rank) {
      v1::BarrierResponse answer;
      return Call(&server_.group(), &v1::Group::Stub::Barrier, requests[rank],
                  &answer);
    };
    absl::Status first;
    std::thread waits([&] { first = come(0); });
    absl::Status both = come(1);
    waits.join();
    both.Update(first);
    return both;
  });
  if (!status.ok()) return;
  // A new one could not be completed: rank 1 will have left.
  repeats_.push_back(RepeatOf(&WireServer::group, &v1::Group::Stub::Barrier,
                              &server_, requests[0], response));
}

void Play::Propose(const std::string& job) {
  const v1::GetPlanResponse known = server_.PlanOf(job);
  v1::ProposePlanRequest request;
  v1::ProposePlanResponse response;
  *request.mutable_fence() = server_.OperatorFence();
  request.set_job(job);
  request.set_expected_version(dice_.Chance(8)    ? dice_.Number()
                               : known.has_next() ? known.next().version()
                                                  : known.current().version());
  *request.mutable_plan() = RandomPlan(&dice_);
  Do("ProposePlan", [&] {
    return Call(&server_.schedule(), &v1::Schedule::Stub::ProposePlan, request,
                &response);
  }).IgnoreError();
}

void Play::Step() {
  v1::AttachRequest request;
  v1::Ticket& ticket = *request.mutable_ticket();
  const int64_t step = next_step_.value_or(dice_.Number());
  ticket.set_stream(kTrain);
  ticket.set_round(round_);
  ticket.set_step(step);
  ticket.set_micro(plan_.accumulation_steps() - 1);
  ticket.set_micro_batches(plan_.accumulation_steps());
  ticket.set_window(plan_.accumulation_steps());
  ticket.set_weight(plan_.accumulation_steps());
  ticket.set_plan_version(plan_.version());
  ticket.set_hook(plan_.hook());
  v1::Decision decision;
  const absl::Status status = Do("Attach", [&] {
    for (const auto& worker : team_) worker->Write(request);
    absl::Status all;
    for (const auto& worker : team_)
      all.Update(worker->ReadDecision(&decision));
    return all;
  });
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 testing::HasSubstr("ticket.step")));
    for (const auto& worker : team_) EXPECT_OK(worker->Attach());
    return;
  }
  ++round_;
  next_step_ = step + 1;
  if (decision.has_plan()) plan_ = decision.plan();
}

absl::Status Play::Upload(const v1::Fence& fence,
                          const std::string& checkpoint) {
  const std::string data = "12345678";
  Context context;
  v1::UploadResponse response;
  const auto stream = server_.checkpoint().Upload(&context, &response);
  v1::UploadRequest message;
  v1::UploadHeader& header = *message.mutable_header();
  *header.mutable_fence() = fence;
  header.set_checkpoint_id(checkpoint);
  header.set_bytes(static_cast<int64_t>(data.size()));
  header.set_crc32c(Crc32c(data));
  stream->Write(message);
  v1::Chunk& chunk = *message.mutable_chunk();
  chunk.set_data(data);
  chunk.set_crc32c(Crc32c(data));
  stream->Write(message);
  stream->WritesDone();
  return FromGrpcStatus(stream->Finish());
}

void Play::SaveCheckpoint() {
  v1::BeginRequest begin = RandomCheckpoint(&dice_);
  *begin.mutable_fence() = FenceOf(0);
  v1::BeginResponse begun;
  v1::Checkpoint::Stub* const stub = &server_.checkpoint();
  if (!Do("Begin", [&] {
         return Call(stub, &v1::Checkpoint::Stub::Begin, begin, &begun);
       }).ok()) {
    return;
  }
  // With more shards than were uploaded it is refused.
  EXPECT_OK(
      Do("Upload", [&] { return Upload(FenceOf(0), begun.checkpoint_id()); }));
  v1::CommitRequest commit;
  *commit.mutable_fence() = FenceOf(0);
  commit.set_checkpoint_id(begun.checkpoint_id());
  v1::CommitResponse committed;
  const absl::Status status = Do("Commit", [&] {
    return Call(stub, &v1::Checkpoint::Stub::Commit, commit, &committed);
  });
  if (!status.ok() || !dice_.Chance(2)) return;
  v1::DeleteRequest request;
  *request.mutable_fence() = FenceOf(0);
  request.set_job("job");
  request.set_checkpoint_id(dice_.Chance(2) ? begun.checkpoint_id() : "none");
  v1::DeleteResponse deleted;
  Do("Delete", [&] {
    return Call(stub, &v1::Checkpoint::Stub::Delete, request, &deleted);
  }).IgnoreError();
}

void Play::Import() {
  v1::BeginRequest begin = RandomCheckpoint(&dice_);
  begin.set_shards(1);
  *begin.mutable_fence() = server_.OperatorFence();
  begin.mutable_fence()->set_job(kImported);
  begin.mutable_fence()->set_request_id(++requests_);
  begin.mutable_import()->set_created_unix_ms(dice_.Number());
  v1::BeginResponse begun;
  v1::Checkpoint::Stub* const stub = &server_.checkpoint();
  if (!Do("Begin", [&] {
         return Call(stub, &v1::Checkpoint::Stub::Begin, begin, &begun);
       }).ok()) {
    return;
  }
  EXPECT_OK(Do("Upload",
               [&] { return Upload(begin.fence(), begun.checkpoint_id()); }));
  v1::CommitRequest commit;
  *commit.mutable_fence() = begin.fence();
  commit.set_checkpoint_id(begun.checkpoint_id());
  v1::CommitResponse committed;
  EXPECT_OK(Do("Commit", [&] {
    return Call(stub, &v1::Checkpoint::Stub::Commit, commit, &committed);
  }));
}

void Play::LeaveOne() {
  v1::LeaveRequest leave;
  absl::Status left = absl::UnknownError("not yet");
  for (int i = 0; i < kTries && !left.ok(); ++i) {
    leave = RandomLeave(&dice_, server_.PlanOf("job").current().version());
    left = Do("Leave", [&] { return team_[1]->Leave(leave); });
  }
  ASSERT_OK(left);
  for (const v1::Position& position : leave.positions()) {
    positions_[position.last().stream()] = position.last();
  }
}

void Play::CheckAfterRestart() {
  ASSERT_OK(team_[0]->Attach());
  const v1::Fence now = team_[0]->Fence();
  for (const auto& repeat : repeats_) repeat(now);
  CheckPositions();
  v1::SetRequest request;
  v1::SetResponse response;
  *request.mutable_fence() = FenceOf(0);
  request.set_key("it goes on");
  EXPECT_OK(Call(&server_.store(), &v1::Store::Stub::Set, request, &response));
}

// The rank that remains has not received what the other one had.
void Play::CheckPositions() {
  for (const auto& [stream, last] : positions_) {
    v1::AttachRequest request;
    v1::Ticket& ticket = *request.mutable_ticket();
    ticket.set_stream(stream);
    ticket.set_round(last.round());
    ticket.set_micro_batches(1);
    ticket.set_window(1);
    ASSERT_TRUE(team_[0]->Write(request));
    v1::Decision decision;
    ASSERT_OK(team_[0]->ReadDecision(&decision));
    v1::Position position;
    *position.mutable_last() = last;
    ASSERT_OK_AND_ASSIGN(const auto taken, schedule::TakePosition(&position));
    EXPECT_EQ(decision.DebugString(),
              schedule::ToWire(stream, taken).DebugString());
  }
}

}  // namespace coxswain
