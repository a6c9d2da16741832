#include "server/coordinator.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/schedule.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "server/checkpoint/manifest.h"
#include "server/state/memory_state_store.h"
#include "server/state/owned_state.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr auto kTimeout = std::chrono::seconds(20);

std::string NewFolder() {
  static std::atomic<int> count{0};
  return absl::StrCat(testing::TempDir(), "/coordinator-", getpid(), "-",
                      count++);
}

std::unique_ptr<Coordinator> MustStart(const std::string& folder) {
  CoordinatorOptions options;
  options.state_dir = folder;
  auto coordinator = Coordinator::Start(options);
  EXPECT_OK(coordinator);
  return coordinator.ok() ? std::move(coordinator).value() : nullptr;
}

// A worker that speaks the protocol by itself.
class Worker {
 public:
  Worker(int port, int world, int slot)
      : channel_(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port),
                                     grpc::InsecureChannelCredentials())),
        stub_(v1::Rendezvous::NewStub(channel_)) {
    request_.set_job("job");
    request_.mutable_identity()->set_node("host-a");
    request_.mutable_identity()->set_slot(slot);
    request_.set_incarnation(100 + slot);
    request_.set_launcher_id(7);
    request_.mutable_manifest()->set_world_size(world);
    request_.mutable_manifest()->set_accumulation_steps(1);
    request_.mutable_manifest()->set_hook("allreduce");
    request_.set_timeout_ms(20000);
  }

  absl::Status Join() {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    return FromGrpcStatus(stub_->Join(&context, request_, &response_));
  }

  // Opens the stream and waits for the answer to hello.
  bool Attach() {
    stream_context_ = std::make_unique<grpc::ClientContext>();
    stream_context_->set_deadline(std::chrono::system_clock::now() + kTimeout);
    stream_ = stub_->Attach(stream_context_.get());
    v1::AttachRequest hello;
    *hello.mutable_hello()->mutable_fence() = fence();
    v1::AttachEvent event;
    return stream_->Write(hello) && stream_->Read(&event) &&
           event.has_attached();
  }
  // Returns whether the coordinator has taken the heartbeat: another call may
  // overtake what was written.
  bool Beat(int64_t step) {
    v1::AttachRequest request;
    request.mutable_heartbeat()->set_step(step);
    if (!stream_->Write(request)) return false;
    const auto until = std::chrono::system_clock::now() + kTimeout;
    do {
      const v1::JobDescription job = Describe();
      if (job.members_size() > response_.rank() &&
          job.members(response_.rank()).step() == step) {
        return true;
      }
      std::this_thread::yield();
    } while (std::chrono::system_clock::now() < until);
    return false;
  }
  v1::AttachEvent ReadEvent() {
    v1::AttachEvent event;
    stream_->Read(&event);
    return event;
  }
  absl::Status FinishStream() { return FromGrpcStatus(stream_->Finish()); }
  void BreakStream() {
    stream_context_->TryCancel();
    stream_->Finish();
  }

  absl::Status Leave(bool failed) {
    grpc::ClientContext context;
    v1::LeaveRequest request;
    v1::LeaveResponse response;
    *request.mutable_fence() = fence();
    request.set_failed(failed);
    request.set_reason("test");
    return FromGrpcStatus(stub_->Leave(&context, request, &response));
  }
  absl::Status ReportExit(int signal) {
    grpc::ClientContext context;
    v1::ReportExitRequest request;
    v1::ReportExitResponse response;
    request.set_job(request_.job());
    request.set_launcher_id(request_.launcher_id());
    *request.mutable_identity() = request_.identity();
    request.set_incarnation(request_.incarnation());
    request.set_signal(signal);
    return FromGrpcStatus(stub_->ReportExit(&context, request, &response));
  }
  v1::JobDescription Describe() {
    grpc::ClientContext context;
    v1::DescribeRequest request;
    v1::DescribeResponse response;
    request.set_job(request_.job());
    stub_->Describe(&context, request, &response);
    return response.jobs_size() == 0 ? v1::JobDescription() : response.jobs(0);
  }
  v1::Fence fence() const {
    v1::Fence fence;
    fence.set_cluster_id(response_.cluster_id());
    fence.set_term(response_.term());
    fence.set_job(request_.job());
    fence.set_generation(response_.generation());
    fence.set_incarnation(request_.incarnation());
    return fence;
  }

  absl::StatusOr<v1::MembersResponse> Members(int first, int count) {
    grpc::ClientContext context;
    v1::MembersRequest request;
    v1::MembersResponse response;
    *request.mutable_fence() = fence();
    request.set_first_rank(first);
    request.set_count(count);
    const grpc::Status status = stub_->Members(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  v1::JoinRequest& request() { return request_; }
  const v1::JoinResponse& response() const { return response_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Rendezvous::Stub> stub_;
  v1::JoinRequest request_;
  v1::JoinResponse response_;
  std::unique_ptr<grpc::ClientContext> stream_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachEvent>>
      stream_;
};

using Team = std::vector<std::unique_ptr<Worker>>;

Team JoinTeam(int port, int world) {
  Team team;
  std::vector<std::thread> threads;
  for (int slot = 0; slot < world; ++slot) {
    team.push_back(std::make_unique<Worker>(port, world, slot));
    threads.emplace_back(
        [worker = team.back().get()] { EXPECT_OK(worker->Join()); });
  }
  for (std::thread& thread : threads) thread.join();
  return team;
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  return fd;
}

TEST(CoordinatorTest, SurvivorsLearnOfAReportedDeath) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 3);
  for (int slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(team[slot]->response().rank(), slot);
    EXPECT_EQ(team[slot]->response().members_size(), 3);
    EXPECT_EQ(team[slot]->response().plan().hook(), "allreduce");
    ASSERT_TRUE(team[slot]->Attach());
    ASSERT_TRUE(team[slot]->Beat(5));
  }
  team[2]->BreakStream();
  ASSERT_OK(team[2]->ReportExit(9));
  for (int slot : {0, 1}) {
    const v1::AttachEvent event = team[slot]->ReadEvent();
    ASSERT_TRUE(event.has_abort());
    EXPECT_THAT(event.abort().reason(),
                AllOf(HasSubstr("rank 2 (host-a/2"),
                      HasSubstr("was lost: killed by signal 9")));
    EXPECT_EQ(event.abort().lost().member().rank(), 2);
    EXPECT_THAT(
        team[slot]->FinishStream(),
        StatusIs(absl::StatusCode::kAborted, HasSubstr("killed by signal 9")));
  }
  EXPECT_EQ(team[0]->Describe().state(), "ended");
  EXPECT_EQ(team[0]->Describe().members(0).step(), 5);
}

TEST(CoordinatorTest, TheAnswersOfALargeJobAreShort) {
  constexpr int kWorld = 65;
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team;
  std::vector<std::thread> threads;
  for (int slot = 0; slot < kWorld; ++slot) {
    team.push_back(std::make_unique<Worker>(coordinator->port(), kWorld, slot));
    v1::JoinRequest& request = team.back()->request();
    request.set_host(slot < 60 ? "host-a" : "host-b");
    request.set_address(slot == 50 ? "127.0.0.1" : "10.0.0.1");
    threads.emplace_back(
        [worker = team.back().get()] { EXPECT_OK(worker->Join()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int slot = 0; slot < kWorld; ++slot) {
    const v1::JoinResponse& joined = team[slot]->response();
    EXPECT_EQ(joined.world_size(), kWorld);
    EXPECT_EQ(joined.unreachable().identity().slot(), 50);
    ASSERT_EQ(joined.members_size(), 1);
    EXPECT_EQ(joined.members(0).identity().slot(), slot);
    EXPECT_LT(joined.ByteSizeLong(), 600u);
  }
  Worker& worker = *team.front();
  ASSERT_OK_AND_ASSIGN(const auto all, worker.Members(0, 1000));
  ASSERT_EQ(all.members_size(), kWorld);
  ASSERT_OK_AND_ASSIGN(const auto page, worker.Members(60, 3));
  ASSERT_EQ(page.members_size(), 3);
  EXPECT_EQ(page.members(2).rank(), 62);
  EXPECT_EQ(page.members(2).host(), "host-b");
  for (const int first : {-1, kWorld}) {
    EXPECT_THAT(worker.Members(first, 1),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("not one of 0 to 64")));
  }
  ASSERT_OK(worker.Leave(true));
  EXPECT_THAT(worker.Members(0, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("stale generation")));
}

TEST(CoordinatorTest, GenerationsGoOnAfterThoseOfTheCheckpoints) {
  CoordinatorOptions options;
  options.state_dir = NewFolder();
  const std::string folder =
      absl::StrCat(options.state_dir, "/checkpoints/job/step-5");
  std::filesystem::create_directories(folder);
  CheckpointRecord old;
  old.id = "step-5";
  old.job = "job";
  old.step = 5;
  old.generation = Generation(41);
  old.shard_count = 1;
  old.shards[0] = {0, "shard-00000.1", 0, 0};
  ASSERT_OK_AND_ASSIGN(const std::string manifest, EncodeManifest(old));
  std::ofstream(absl::StrCat(folder, "/", kManifestFile)) << manifest;
  const auto coordinator = Coordinator::Start(options);
  ASSERT_OK(coordinator);
  EXPECT_EQ(JoinTeam((*coordinator)->port(), 1)[0]->response().generation(),
            42);
}

TEST(CoordinatorTest, LeavingEndsTheStreamWithOk) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 2);
  for (const auto& worker : team) ASSERT_TRUE(worker->Attach());
  ASSERT_OK(team[0]->Leave(false));
  EXPECT_OK(team[0]->FinishStream());
  const v1::AttachEvent event = team[1]->ReadEvent();
  ASSERT_TRUE(event.has_member_left());
  EXPECT_EQ(event.member_left().member().rank(), 0);
  ASSERT_OK(team[1]->Leave(false));
  EXPECT_EQ(team[1]->Describe().state(), "ended");
}

TEST(CoordinatorTest, StaleHelloIsRefused) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 1);
  ASSERT_OK(team[0]->Leave(false));
  EXPECT_FALSE(team[0]->Attach());
  const absl::Status status = team[0]->FinishStream();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("stale generation")));
  const v1::ErrorDetail detail = DetailOf(status);
  EXPECT_EQ(detail.stale_fence().field(), "generation");
}

TEST(CoordinatorTest, StreamWithoutHelloIsRefused) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Worker worker(coordinator->port(), 1, 0);
  auto stub = v1::Rendezvous::NewStub(worker.channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  auto stream = stub->Attach(&context);
  v1::AttachRequest request;
  request.mutable_heartbeat();
  stream->Write(request);
  v1::AttachEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_THAT(FromGrpcStatus(stream->Finish()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hello")));
}

TEST(CoordinatorTest, OtherModelGetsItsDifferencesOverTheWire) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 1);
  Worker other(coordinator->port(), 1, 1);
  for (int i = 0; i < 100; ++i) {
    auto* parameter = other.request().mutable_manifest()->add_parameters();
    parameter->set_name(std::string(500, 'p'));
    parameter->set_dtype("float32");
  }
  const absl::Status status = other.Join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("number of parameters: 0")));
  const v1::ErrorDetail detail = DetailOf(status);
  EXPECT_GT(detail.manifest_mismatch().differences_size(), 1);
}

TEST(CoordinatorTest, ClientThatCancelsIsWithdrawn) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Worker worker(coordinator->port(), 2, 0);
  auto stub = v1::Rendezvous::NewStub(worker.channel());
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(300));
    v1::JoinResponse response;
    EXPECT_EQ(stub->Join(&context, worker.request(), &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  // The coordinator has noticed once it answers so.
  const auto until = std::chrono::system_clock::now() + kTimeout;
  while (worker.Describe().state() != "ended" &&
         std::chrono::system_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(worker.Describe().state(), "ended");
}

TEST(CoordinatorTest, GarbageAtThePortHarmsNoJob) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 1);
  ASSERT_TRUE(team[0]->Attach());
  for (const std::string& garbage :
       {std::string(100000, '\xfe'), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") +
            std::string(5000, '\x7f')}) {
    const int fd = Connect(coordinator->port());
    send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    close(fd);
  }
  EXPECT_TRUE(team[0]->Beat(9));
  EXPECT_EQ(team[0]->Describe().state(), "running");
  EXPECT_OK(team[0]->Leave(false));
  EXPECT_OK(team[0]->FinishStream());
}

TEST(CoordinatorTest, RestartOnTheSameStateBeginsANewTerm) {
  const std::string folder = NewFolder();
  auto coordinator = MustStart(folder);
  ASSERT_NE(coordinator, nullptr);
  Team before = JoinTeam(coordinator->port(), 1);
  coordinator.reset();
  coordinator = MustStart(folder);
  ASSERT_NE(coordinator, nullptr);
  Team after = JoinTeam(coordinator->port(), 1);
  EXPECT_EQ(after[0]->response().cluster_id(),
            before[0]->response().cluster_id());
  EXPECT_GT(after[0]->response().term(), before[0]->response().term());
  // The same process: it is a member of what goes on.
  EXPECT_EQ(after[0]->response().generation(),
            before[0]->response().generation());
}

TEST(CoordinatorTest, ShutdownAnswersWaitingCalls) {
  auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 1);
  ASSERT_TRUE(team[0]->Attach());
  const auto started = std::chrono::steady_clock::now();
  coordinator->Shutdown(absl::Seconds(15));
  EXPECT_LT(std::chrono::steady_clock::now() - started,
            std::chrono::seconds(10));
  EXPECT_THAT(team[0]->FinishStream(),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST(CoordinatorTest, PlanCanBeReadAndProposed) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 1);
  auto stub = v1::Schedule::NewStub(team[0]->channel());
  v1::ProposePlanRequest proposal;
  proposal.set_job("job");
  proposal.set_expected_version(1);
  proposal.mutable_plan()->set_hook("bf16");
  proposal.mutable_plan()->set_accumulation_steps(2);
  proposal.mutable_plan()->set_compression_start_step(-1);
  v1::ProposePlanResponse proposed;
  {
    // A request without a fence could be meant for another coordinator.
    grpc::ClientContext context;
    EXPECT_THAT(
        FromGrpcStatus(stub->ProposePlan(&context, proposal, &proposed)),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 HasSubstr("cluster_id")));
  }
  proposal.mutable_fence()->set_cluster_id(team[0]->response().cluster_id());
  proposal.mutable_fence()->set_term(team[0]->response().term());
  grpc::ClientContext context;
  ASSERT_OK(FromGrpcStatus(stub->ProposePlan(&context, proposal, &proposed)));
  EXPECT_EQ(proposed.next().version(), 2);
  v1::GetPlanRequest request;
  request.set_job("job");
  v1::GetPlanResponse plans;
  grpc::ClientContext context2;
  ASSERT_OK(FromGrpcStatus(stub->GetPlan(&context2, request, &plans)));
  EXPECT_EQ(plans.current().hook(), "allreduce");
  EXPECT_EQ(plans.next().hook(), "bf16");
}

TEST(CoordinatorTest, AStreamWithoutHelloIsEnded) {
  CoordinatorOptions options;
  options.state_dir = NewFolder();
  options.rpc.first_message_timeout = absl::Milliseconds(100);
  ASSERT_OK_AND_ASSIGN(const auto coordinator, Coordinator::Start(options));
  const auto stub = v1::Rendezvous::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", coordinator->port()),
                          grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  const auto stream = stub->Attach(&context);
  v1::AttachEvent event;
  EXPECT_FALSE(stream->Read(&event));
  EXPECT_THAT(
      FromGrpcStatus(stream->Finish()),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("hello")));
}

TEST(CoordinatorTest, EndOfTheGenerationEndsAllWaits) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 2);
  auto stub = v1::Store::NewStub(team[0]->channel());
  v1::SetRequest set;
  *set.mutable_fence() = team[0]->fence();
  set.mutable_fence()->set_request_id(1);
  set.set_key("key");
  set.set_value("value");
  v1::SetResponse done;
  grpc::ClientContext set_context;
  ASSERT_OK(FromGrpcStatus(stub->Set(&set_context, set, &done)));

  v1::GetRequest get;
  *get.mutable_fence() = team[0]->fence();
  get.set_timeout_ms(20000);
  get.set_key("key");
  v1::GetResponse value;
  grpc::ClientContext get_context;
  ASSERT_OK(FromGrpcStatus(stub->Get(&get_context, get, &value)));
  EXPECT_EQ(value.value(), "value");

  get.set_key("never");
  absl::Status waited;
  std::thread waiter([&] {
    v1::GetResponse none;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kTimeout);
    waited = FromGrpcStatus(stub->Get(&context, get, &none));
  });
  ASSERT_OK(team[1]->Leave(true));
  waiter.join();
  // Or the wait began only after the end.
  EXPECT_TRUE(absl::IsAborted(waited) || absl::IsFailedPrecondition(waited))
      << waited;
  EXPECT_THAT(std::string(waited.message()), HasSubstr("failed: test"));
}

TEST(CoordinatorTest, BadOptionsAreNamed) {
  CoordinatorOptions options;
  options.state_dir = NewFolder();
  options.membership.lease = absl::Seconds(1);
  EXPECT_THAT(Coordinator::Start(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lease")));
  options = CoordinatorOptions();
  EXPECT_THAT(
      Coordinator::Start(options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("state_dir")));
}

TEST(CoordinatorTest, PortInUseIsAClearError) {
  const auto first = MustStart(NewFolder());
  ASSERT_NE(first, nullptr);
  CoordinatorOptions options;
  options.state_dir = NewFolder();
  options.listen = absl::StrCat("127.0.0.1:", first->port());
  EXPECT_THAT(Coordinator::Start(options),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("cannot listen on"),
                             HasSubstr("Address already in use"))));
}

TEST(CoordinatorTest, StateDirInUseIsAClearError) {
  const std::string folder = NewFolder();
  const auto first = MustStart(folder);
  CoordinatorOptions options;
  options.state_dir = folder;
  EXPECT_THAT(Coordinator::Start(options),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("another coordinator")));
}

// Repeats the question until the answer is yes or the time is up.
bool Eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

// A state that a test can take away.
class LosableState : public OwnedState {
 public:
  StateStore& store() override { return store_; }
  bool Held() override { return lost_.status().ok(); }
  CancelSignal& lost() override { return lost_; }
  void Lose() { lost_.Raise(absl::AbortedError("another one leads")); }

 private:
  MemoryStateStore store_;
  CancelSignal lost_;
};

TEST(CoordinatorTest, NothingIsSentOnceTheStateIsLost) {
  const auto state = std::make_shared<LosableState>();
  CoordinatorOptions options;
  options.state_dir = NewFolder();
  options.state = state;
  ASSERT_OK_AND_ASSIGN(const auto coordinator, Coordinator::Start(options));
  Team team = JoinTeam(coordinator->port(), 1);
  ASSERT_TRUE(team[0]->Attach());
  EXPECT_EQ(team[0]->Describe().state(), "running");
  Worker early(coordinator->port(), 2, 5);
  early.request().set_job("other");
  absl::Status joined;
  std::thread waiter([&] { joined = early.Join(); });
  // It waits at the coordinator by now.
  EXPECT_TRUE(
      Eventually([&] { return early.Describe().state() == "forming"; }));

  state->Lose();
  // The next request finds it out, and then all connections end.
  EXPECT_EQ(team[0]->Describe().state(), "");
  EXPECT_THAT(team[0]->FinishStream(),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
  waiter.join();
  EXPECT_THAT(joined, StatusIs(absl::StatusCode::kUnavailable, testing::_));
  EXPECT_THAT(joined.message(), testing::Not(HasSubstr("shut")));
  coordinator->Abandon();
}

TEST(CoordinatorTest, AbandonEndsEverythingWithoutAWord) {
  const auto coordinator = MustStart(NewFolder());
  ASSERT_NE(coordinator, nullptr);
  Team team = JoinTeam(coordinator->port(), 1);
  ASSERT_TRUE(team[0]->Attach());
  coordinator->Abandon();
  EXPECT_THAT(team[0]->FinishStream(),
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

TEST(CoordinatorTest, TheNextOneOnTheSameStateGoesOnWithTheGeneration) {
  const auto state = std::make_shared<LosableState>();
  CoordinatorOptions options;
  options.state_dir = NewFolder();
  options.state = state;
  ASSERT_OK_AND_ASSIGN(auto coordinator, Coordinator::Start(options));
  options.listen = absl::StrCat("127.0.0.1:", coordinator->port());
  Team team = JoinTeam(coordinator->port(), 2);
  for (const auto& worker : team) ASSERT_TRUE(worker->Attach());
  coordinator->Abandon();
  coordinator.reset();
  ASSERT_OK_AND_ASSIGN(coordinator, Coordinator::Start(options));
  for (const auto& worker : team) {
    worker->FinishStream().IgnoreError();
    // gRPC needs a moment to connect again.
    EXPECT_TRUE(Eventually([&] { return worker->Attach(); }));
  }
  EXPECT_EQ(team[0]->Describe().state(), "running");
}

}  // namespace
}  // namespace coxswain::server
