// The schedule as workers meet it: tickets and votes over Attach streams of a
// whole coordinator, on loopback.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/schedule.grpc.pb.h"
#include "server/coordinator.h"

namespace coxswain::server::schedule_wire_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kTrain[] = "train";

// Every call of a test ends within this, whatever happens.
struct Context : grpc::ClientContext {
  Context() {
    set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }
};

// A worker as the wire sees it.
class Worker {
 public:
  Worker(const std::shared_ptr<grpc::Channel>& channel, int world, int slot)
      : stub_(v1::Rendezvous::NewStub(channel)) {
    request_.set_job("job");
    request_.mutable_identity()->set_node("host-a");
    request_.mutable_identity()->set_slot(slot);
    request_.set_incarnation(static_cast<uint64_t>(100 + slot));
    request_.mutable_manifest()->set_world_size(world);
    request_.mutable_manifest()->set_accumulation_steps(2);
    request_.mutable_manifest()->set_hook("allreduce");
    request_.set_timeout_ms(30000);
  }
  v1::Manifest* manifest() { return request_.mutable_manifest(); }
  absl::Status Join() {
    Context context;
    return FromGrpcStatus(stub_->Join(&context, request_, &joined_));
  }
  v1::AttachRequest Hello() const {
    v1::AttachRequest request;
    v1::Fence* fence = request.mutable_hello()->mutable_fence();
    fence->set_cluster_id(joined_.cluster_id());
    fence->set_term(joined_.term());
    fence->set_job("job");
    fence->set_generation(joined_.generation());
    fence->set_incarnation(request_.incarnation());
    return request;
  }
  bool Attach() {
    context_ = std::make_unique<Context>();
    stream_ = stub_->Attach(context_.get());
    if (!stream_->Write(Hello())) return false;
    const v1::AttachEvent event = Read();
    term_ = event.attached().term();
    return event.has_attached();
  }
  // To another coordinator.
  bool AttachTo(const std::shared_ptr<grpc::Channel>& channel) {
    stub_ = v1::Rendezvous::NewStub(channel);
    return Attach();
  }
  bool ReportPosition(int64_t round, std::optional<int64_t> plan = {}) {
    v1::AttachRequest request;
    v1::Decision* last = request.mutable_position()->mutable_last();
    last->set_stream(kTrain);
    last->set_round(round);
    last->set_commit(true);
    if (plan.has_value()) last->mutable_plan()->set_version(*plan);
    return stream_->Write(request);
  }
  int64_t term() const { return term_; }
  // Announces a full window.
  bool Announce(int64_t round, const std::string& hook = "allreduce",
                const std::string& stream = kTrain) {
    v1::AttachRequest request;
    v1::Ticket* ticket = request.mutable_ticket();
    ticket->set_stream(stream);
    ticket->set_round(round);
    ticket->set_step(round);
    ticket->set_micro(1);
    ticket->set_micro_batches(2);
    ticket->set_window(2);
    ticket->set_weight(2);
    ticket->set_plan_version(plan_version);
    ticket->set_hook(hook);
    ticket->set_drain(drain);
    ticket->set_checkpoint(checkpoint);
    return stream_->Write(request);
  }
  bool Vote(int64_t round, const std::string& reason) {
    v1::AttachRequest request;
    v1::Vote* vote = request.mutable_vote();
    vote->set_stream(kTrain);
    vote->set_round(round);
    vote->set_commit(reason.empty());
    vote->set_reason(reason);
    return stream_->Write(request);
  }
  v1::AttachEvent Read() {
    v1::AttachEvent event;
    stream_->Read(&event);
    return event;
  }
  absl::Status Finish() { return FromGrpcStatus(stream_->Finish()); }
  const v1::JoinResponse& joined() const { return joined_; }

  int64_t plan_version = 1;
  std::string drain;
  std::string checkpoint;

 private:
  std::unique_ptr<v1::Rendezvous::Stub> stub_;
  v1::JoinRequest request_;
  v1::JoinResponse joined_;
  int64_t term_ = 0;
  std::unique_ptr<Context> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachEvent>>
      stream_;
};

class ScheduleWireTest : public testing::Test {
 protected:
  void SetUp() override {
    static std::atomic<int> count{0};
    options_.state_dir =
        absl::StrCat(testing::TempDir(), "/schedule-", getpid(), "-", count++);
    StartCoordinator();
  }
  void StartCoordinator() {
    coordinator_.reset();
    ASSERT_OK_AND_ASSIGN(coordinator_, Coordinator::Start(options_));
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", coordinator_->port()),
                            grpc::InsecureChannelCredentials());
    schedule_ = v1::Schedule::NewStub(channel_);
  }

  using Team = std::vector<std::unique_ptr<Worker>>;
  // A running job whose workers are attached, by rank.
  Team Run(int world,
           const std::vector<std::pair<std::string, std::string>>& terms = {}) {
    Team team;
    std::vector<std::thread> threads;
    for (int slot = 0; slot < world; ++slot) {
      team.push_back(std::make_unique<Worker>(channel_, world, slot));
      for (const auto& [name, value] : terms) {
        (*team.back()->manifest()->mutable_terms())[name] = value;
      }
      threads.emplace_back(
          [worker = team.back().get()] { EXPECT_OK(worker->Join()); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& worker : team) EXPECT_TRUE(worker->Attach());
    return team;
  }
  absl::StatusOr<v1::Plan> Propose(const Team& team, const v1::Plan& plan,
                                   int64_t expected_version) {
    Context context;
    v1::ProposePlanRequest request;
    v1::ProposePlanResponse response;
    request.set_job("job");
    request.set_expected_version(expected_version);
    *request.mutable_plan() = plan;
    request.mutable_fence()->set_cluster_id(team[0]->joined().cluster_id());
    request.mutable_fence()->set_term(team[0]->joined().term());
    const grpc::Status status =
        schedule_->ProposePlan(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response.next();
  }
  absl::StatusOr<int64_t> RequestCheckpoint(const Team& team,
                                            const std::string& job) {
    Context context;
    v1::RequestCheckpointRequest request;
    v1::RequestCheckpointResponse response;
    request.set_job(job);
    request.set_reason("an operator");
    request.mutable_fence()->set_cluster_id(team[0]->joined().cluster_id());
    request.mutable_fence()->set_term(team[0]->joined().term());
    const grpc::Status status =
        schedule_->RequestCheckpoint(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response.newest_step();
  }
  absl::StatusOr<v1::WhyResponse> Why(const std::string& job) {
    Context context;
    v1::WhyRequest request;
    v1::WhyResponse response;
    request.set_job(job);
    const grpc::Status status = schedule_->Why(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  CoordinatorOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Schedule::Stub> schedule_;
};

TEST_F(ScheduleWireTest, TicketsAreDecidedForAll) {
  Team team = Run(2);
  EXPECT_EQ(team[0]->joined().plan().global_micro_batches(), 4);
  EXPECT_TRUE(team[0]->joined().plan().terms().empty()) << "all defaults";
  for (int64_t round : {0, 1, 2}) {
    for (const auto& worker : team) ASSERT_TRUE(worker->Announce(round));
    for (const auto& worker : team) {
      const v1::AttachEvent event = worker->Read();
      ASSERT_TRUE(event.has_decision());
      EXPECT_EQ(event.decision().stream(), kTrain);
      EXPECT_EQ(event.decision().round(), round);
      EXPECT_TRUE(event.decision().commit());
      EXPECT_FALSE(event.decision().has_plan());
    }
  }
}

TEST_F(ScheduleWireTest, StrictIsGrantedThenVotedOn) {
  Team team = Run(2, {{"enforcement", "strict"}, {"commit_vote", "true"}});
  for (const auto& worker : team) ASSERT_TRUE(worker->Announce(0));
  for (const auto& worker : team) {
    const v1::AttachEvent event = worker->Read();
    ASSERT_TRUE(event.has_grant());
    EXPECT_EQ(event.grant().stream(), kTrain);
    EXPECT_EQ(event.grant().round(), 0);
  }
  ASSERT_TRUE(team[0]->Vote(0, ""));
  ASSERT_TRUE(team[1]->Vote(0, "loss is nan"));
  for (const auto& worker : team) {
    const v1::AttachEvent event = worker->Read();
    ASSERT_TRUE(event.has_decision());
    EXPECT_FALSE(event.decision().commit());
    EXPECT_THAT(event.decision().reason(), HasSubstr("rank 1: loss is nan"));
  }
}

TEST_F(ScheduleWireTest, AMismatchAbortsAllWithItsDetail) {
  Team team = Run(3);
  for (int rank : {0, 2}) ASSERT_TRUE(team[rank]->Announce(0));
  ASSERT_TRUE(team[1]->Announce(0, "bf16"));
  for (const auto& worker : team) {
    const v1::AttachEvent event = worker->Read();
    ASSERT_TRUE(event.has_abort());
    EXPECT_THAT(event.abort().reason(),
                AllOf(HasSubstr("allreduce on ranks 0, 2"),
                      HasSubstr("bf16 on rank 1")));
    ASSERT_TRUE(event.abort().has_mismatch());
    EXPECT_FALSE(event.abort().has_lost());
    EXPECT_EQ(event.abort().mismatch().stream(), kTrain);
    EXPECT_THAT(event.abort().mismatch().odd_ranks(), ElementsAre(1));
    EXPECT_GT(event.abort().mismatch().differences_size(), 0);
    EXPECT_THAT(worker->Finish(), StatusIs(absl::StatusCode::kAborted,
                                           HasSubstr("bf16 on rank 1")));
  }

  ASSERT_OK_AND_ASSIGN(const v1::WhyResponse why, Why("job"));
  EXPECT_EQ(why.state(), "ended");
  EXPECT_EQ(why.generation(), team[0]->joined().generation());
  EXPECT_THAT(why.last_event(), HasSubstr("bf16 on rank 1"));
  ASSERT_GT(why.findings_size(), 0);
  EXPECT_EQ(why.findings(0), why.last_event());
  ASSERT_EQ(why.ranks_size(), 3);
  EXPECT_FALSE(why.ranks(0).odd());
  EXPECT_TRUE(why.ranks(1).odd());
  EXPECT_EQ(why.ranks(1).stream(), kTrain);
  EXPECT_EQ(why.ranks(1).window(), 2);
  EXPECT_THAT(why.ranks(1).member(), HasSubstr("host-a/1"));
  EXPECT_THAT(Why("ghost"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ghost")));
}

TEST_F(ScheduleWireTest, APlanChangesAtTheSameStepForAll) {
  Team team = Run(2);
  v1::Plan plan = team[0]->joined().plan();
  plan.set_compression_start_step(9);
  plan.set_at_step(2);
  (*plan.mutable_terms())["max_steps"] = "40";
  ASSERT_OK_AND_ASSIGN(const v1::Plan next, Propose(team, plan, 1));
  EXPECT_EQ(next.version(), 2);
  EXPECT_EQ(next.at_step(), 2);
  for (int64_t round : {0, 1, 2}) {
    for (const auto& worker : team) {
      worker->plan_version = round < 2 ? 1 : 2;
      ASSERT_TRUE(worker->Announce(round));
    }
    for (const auto& worker : team) {
      const v1::AttachEvent event = worker->Read();
      ASSERT_TRUE(event.has_decision());
      ASSERT_EQ(event.decision().has_plan(), round == 1) << round;
      if (round != 1) continue;
      EXPECT_EQ(event.decision().plan().version(), 2);
      EXPECT_EQ(event.decision().plan().at_step(), 2);
      EXPECT_EQ(event.decision().plan().compression_start_step(), 9);
      EXPECT_EQ(event.decision().plan().terms().at("max_steps"), "40");
    }
  }
  ASSERT_OK_AND_ASSIGN(const v1::WhyResponse why, Why("job"));
  ASSERT_EQ(why.history_size(), 3);
  EXPECT_EQ(why.history(0).round(), 2);
  EXPECT_EQ(why.history(0).plan_version(), 2);
  EXPECT_EQ(why.history(1).plan_version(), 1);
}

TEST_F(ScheduleWireTest, UnknownTermsAreRefused) {
  Team team = Run(1);
  v1::Plan plan = team[0]->joined().plan();
  (*plan.mutable_terms())["nosuchterm"] = "1";
  EXPECT_THAT(
      Propose(team, plan, 1),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nosuchterm")));
  Worker other(channel_, 1, 5);
  (*other.manifest()->mutable_terms())["tail"] = "wag";
  EXPECT_THAT(other.Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("tail=wag")));
}

TEST_F(ScheduleWireTest, AStreamWithoutANameIsRefused) {
  Team team = Run(1);
  ASSERT_TRUE(team[0]->Announce(0, "allreduce", "no name"));
  EXPECT_THAT(team[0]->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("name of a stream")));
}

// The one before is as it was.
TEST_F(ScheduleWireTest, AHelloThatIsRefusedTakesNoPlace) {
  Team team = Run(1);
  v1::AttachRequest request = team[0]->Hello();
  request.mutable_hello()->set_fallback_address("no address");
  Context context;
  const auto stub = v1::Rendezvous::NewStub(channel_);
  const auto second = stub->Attach(&context);
  ASSERT_TRUE(second->Write(request));
  v1::AttachEvent event;
  EXPECT_FALSE(second->Read(&event));
  EXPECT_THAT(FromGrpcStatus(second->Finish()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("hello.fallback_address must be")));
  ASSERT_TRUE(team[0]->Announce(0));
  EXPECT_TRUE(team[0]->Read().has_decision());
}

TEST_F(ScheduleWireTest, NumbersThatNoProgramComesToAreRefused) {
  for (const int64_t round : {int64_t{-1}, int64_t{1} << 53}) {
    Team team = Run(1);
    ASSERT_TRUE(team[0]->Announce(round));
    EXPECT_THAT(team[0]->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("ticket.round")));
    team = Run(1);
    ASSERT_TRUE(team[0]->Vote(round, ""));
    EXPECT_THAT(team[0]->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("vote.round")));
  }
}

TEST_F(ScheduleWireTest, TheLowestStartOfCompressionIsRefused) {
  Worker worker(channel_, 1, 0);
  worker.manifest()->set_compression_start(std::numeric_limits<int64_t>::min());
  EXPECT_THAT(worker.Join(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("compression_start")));
}

TEST_F(ScheduleWireTest, ARankThatAttachesAgainIsAnsweredAgain) {
  Team team = Run(2);
  for (const auto& worker : team) ASSERT_TRUE(worker->Announce(0));
  EXPECT_TRUE(team[0]->Read().has_decision());
  // The answer of this one is lost with its connection.
  ASSERT_TRUE(team[1]->Attach());
  ASSERT_TRUE(team[1]->Announce(0));
  const v1::AttachEvent event = team[1]->Read();
  ASSERT_TRUE(event.has_decision());
  EXPECT_EQ(event.decision().round(), 0);
}

TEST_F(ScheduleWireTest, RanksGoOnWithARestartedCoordinator) {
  Team team = Run(2);
  for (const auto& worker : team) ASSERT_TRUE(worker->Announce(0));
  ASSERT_TRUE(team[0]->Read().has_decision());
  ASSERT_TRUE(team[0]->Announce(1));
  StartCoordinator();
  ASSERT_TRUE(team[0]->AttachTo(channel_));
  EXPECT_GT(team[0]->term(), team[0]->joined().term());
  ASSERT_TRUE(team[0]->ReportPosition(0));
  ASSERT_TRUE(team[0]->Announce(1));
  // This one has not received the first decision.
  ASSERT_TRUE(team[1]->AttachTo(channel_));
  ASSERT_TRUE(team[1]->Announce(0));
  v1::AttachEvent event = team[1]->Read();
  ASSERT_TRUE(event.has_decision());
  EXPECT_EQ(event.decision().round(), 0);
  ASSERT_TRUE(team[1]->Announce(1));
  for (const auto& worker : team) {
    event = worker->Read();
    ASSERT_TRUE(event.has_decision());
    EXPECT_EQ(event.decision().round(), 1);
  }
}

TEST_F(ScheduleWireTest, ADrainIsDecidedForAll) {
  Team team = Run(2);
  team[1]->drain = "SIGTERM";
  for (const auto& worker : team) ASSERT_TRUE(worker->Announce(0));
  for (const auto& worker : team) {
    const v1::AttachEvent event = worker->Read();
    ASSERT_TRUE(event.has_decision());
    EXPECT_EQ(event.decision().regroup(), "rank 1 (host-a/1) drains: SIGTERM");
  }
}

TEST_F(ScheduleWireTest, APositionThatNoProgramComesToIsRefused) {
  Team team = Run(1);
  ASSERT_TRUE(team[0]->ReportPosition(-1));
  EXPECT_THAT(team[0]->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("position.round")));
}

TEST_F(ScheduleWireTest, APositionWithAPlanWithoutANumberIsRefused) {
  Team team = Run(1);
  ASSERT_TRUE(team[0]->ReportPosition(0, 0));
  EXPECT_THAT(team[0]->Finish(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("position.plan.version must be from 1")));
}

TEST_F(ScheduleWireTest, ACheckpointIsDecidedForAll) {
  Team team = Run(2);
  EXPECT_THAT(RequestCheckpoint(team, "other"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("other")));
  ASSERT_OK_AND_ASSIGN(const int64_t newest, RequestCheckpoint(team, "job"));
  EXPECT_EQ(newest, 0);
  team[1]->checkpoint = "SIGTERM";
  for (const auto& worker : team) ASSERT_TRUE(worker->Announce(0));
  for (const auto& worker : team) {
    EXPECT_EQ(worker->Read().decision().checkpoint(),
              "rank 1 (host-a/1) asks: SIGTERM; an operator");
  }
}

TEST_F(ScheduleWireTest, WithoutEnforcementNoRankCanBeAskedForACheckpoint) {
  Team team = Run(1, {{"enforcement", "off"}});
  EXPECT_THAT(RequestCheckpoint(team, "job"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("checkpoint_every")));
}

}  // namespace
}  // namespace coxswain::server::schedule_wire_test
