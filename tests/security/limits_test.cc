// What one peer may take of a coordinator, as docs/limits.md lists it, where it
// shows on the wire only.

#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "client/fallback/fallback_coordinator.h"
#include "client/fallback/fallback_server.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/rendezvous.grpc.pb.h"
#include "proto/store.grpc.pb.h"
#include "schedule/plan.h"
#include "server/coordinator.h"
#include "tests/security/bare_client.h"
#include "tests/security/http2.h"

namespace coxswain {
namespace {

using testing::_;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

constexpr int kTimeoutMs = BareClient::kTimeoutMs;

// Every call of a test ends within this, whatever happens.
struct Context : grpc::ClientContext {
  Context() {
    set_deadline(std::chrono::system_clock::now() +
                 std::chrono::milliseconds(kTimeoutMs));
  }
};

class LimitsTest : public testing::Test {
 protected:
  // One member alone runs a job.
  void Start(const server::RpcOptions& rpc) {
    server::CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = absl::StrCat(
        testing::TempDir(), "/",
        testing::UnitTest::GetInstance()->current_test_info()->name());
    options.rpc = rpc;
    ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
    grpc::ChannelArguments arguments;
    // As the library's own channels take it.
    arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);
    const auto channel = grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", coordinator_->port()),
        grpc::InsecureChannelCredentials(), arguments);
    rendezvous_ = v1::Rendezvous::NewStub(channel);
    store_ = v1::Store::NewStub(channel);
    Join();
  }

  void Join() {
    Context context;
    v1::JoinRequest request;
    request.set_job("job");
    request.mutable_identity()->set_node("node");
    request.set_incarnation(7);
    request.set_timeout_ms(kTimeoutMs);
    request.mutable_manifest()->set_world_size(1);
    request.mutable_manifest()->set_hook("allreduce");
    request.mutable_manifest()->set_accumulation_steps(1);
    v1::JoinResponse response;
    ASSERT_OK(FromGrpcStatus(rendezvous_->Join(&context, request, &response)));
    fence_.set_cluster_id(response.cluster_id());
    fence_.set_term(response.term());
    fence_.set_job("job");
    fence_.set_generation(response.generation());
    fence_.set_incarnation(7);
  }

  absl::Status Set(const std::string& value) {
    Context context;
    v1::SetRequest request;
    *request.mutable_fence() = fence_;
    request.mutable_fence()->set_request_id(++requests_);
    request.set_key("key");
    request.set_value(value);
    v1::SetResponse response;
    return FromGrpcStatus(store_->Set(&context, request, &response));
  }

  std::string StateOfJob() {
    Context context;
    v1::DescribeRequest request;
    request.set_job("job");
    v1::DescribeResponse response;
    const absl::Status status =
        FromGrpcStatus(rendezvous_->Describe(&context, request, &response));
    EXPECT_OK(status);
    if (response.jobs_size() != 1 || response.jobs(0).members_size() != 1) {
      return "?";
    }
    const v1::JobDescription& job = response.jobs(0);
    return absl::StrCat(job.state(), ", ", job.members(0).state());
  }

  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<v1::Rendezvous::Stub> rendezvous_;
  std::unique_ptr<v1::Store::Stub> store_;
  v1::Fence fence_;
  uint64_t requests_ = 0;
};

TEST_F(LimitsTest, AMessageIsNotLargerThanTheLimit) {
  server::RpcOptions options;
  options.max_message_bytes = 64 << 10;
  Start(options);
  EXPECT_OK(Set(std::string(60 << 10, 'x')));
  EXPECT_THAT(Set(std::string(70 << 10, 'x')),
              StatusIs(absl::StatusCode::kResourceExhausted, _));
  EXPECT_OK(Set("more"));
}

TEST_F(LimitsTest, AConnectionHasNoMoreStreamsThanTheLimit) {
  server::RpcOptions options;
  options.max_streams_per_connection = 5;
  Start(options);
  BareClient client(coordinator_->port());
  client.Send(BareClient::Preface());
  // SETTINGS_MAX_CONCURRENT_STREAMS, which gRPC's transport enforces.
  EXPECT_EQ(client.Setting(3), 5u);
}

// To count them, and to send those away that send many, costs more.
TEST_F(LimitsTest, PingsAreAnsweredHoweverManyThereAre) {
  Start(server::RpcOptions());
  BareClient client(coordinator_->port());
  std::string pings;
  for (int i = 0; i < 100; ++i) {
    pings += Http2Frame(kHttp2Ping, 0, 0, absl::StrFormat("ping%04d", i));
  }
  client.Send(BareClient::Preface() + pings);
  EXPECT_TRUE(client.Receives("ping0099"));
}

// It sends tickets, which are answered again and again, and takes no answer:
// its HTTP/2 window is closed.
TEST_F(LimitsTest, AWorkerThatDoesNotReadItsEventsIsDetached) {
  server::RpcOptions options;
  options.max_queued_events = 4;
  Start(options);
  BareClient client(coordinator_->port());
  const std::string no_window("\0\4\0\0\0\0", 6);
  v1::AttachRequest hello;
  *hello.mutable_hello()->mutable_fence() = fence_;
  client.Send(absl::StrCat(
      kHttp2Preface, Http2Frame(kHttp2Settings, 0, 0, no_window),
      Http2Frame(kHttp2Headers, kHttp2EndHeaders, 1,
                 GrpcHeaders("/coxswain.v1.Rendezvous/Attach")),
      Http2Frame(kHttp2Data, 0, 1, GrpcMessage(hello.SerializeAsString()))));
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(kTimeoutMs);
  const auto await = [&](const std::string& state) {
    while (StateOfJob() != state) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << StateOfJob();
    }
  };
  await("running, attached");
  v1::AttachRequest ticket;
  ticket.mutable_ticket()->set_stream("train");
  ticket.mutable_ticket()->set_micro_batches(1);
  ticket.mutable_ticket()->set_window(1);
  ticket.mutable_ticket()->set_weight(1);
  ticket.mutable_ticket()->set_plan_version(1);
  ticket.mutable_ticket()->set_hook("allreduce");
  for (int i = 0; i < 20; ++i) {
    client.Send(
        Http2Frame(kHttp2Data, 0, 1, GrpcMessage(ticket.SerializeAsString())));
  }
  await("running, detached");
}

// Errors and log lines name the worker or job, however long its name is.
TEST_F(LimitsTest, LongNamesAreNotRepeatedInFull) {
  Start(server::RpcOptions());
  const std::string name(1 << 20, 'x');
  {
    Context context;
    v1::DescribeRequest request;
    request.set_job(name);
    v1::DescribeResponse response;
    const absl::Status status =
        FromGrpcStatus(rendezvous_->Describe(&context, request, &response));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                                 HasSubstr("no job 'xxx")));
    EXPECT_LT(status.message().size(), 10'000u);
  }
  testing::internal::CaptureStderr();
  Context context;
  v1::JoinRequest request;
  request.set_job(name);
  request.mutable_identity()->set_node(name);
  v1::JoinResponse response;
  EXPECT_THAT(FromGrpcStatus(rendezvous_->Join(&context, request, &response)),
              StatusIs(absl::StatusCode::kInvalidArgument, _));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("join_refused"));
  EXPECT_LT(log.size(), 2000u);
}

// A caller that reaches the port can provoke refusals as often as it likes.
TEST_F(LimitsTest, RefusedJoinsAreLoggedOnceAMinuteForAPeer) {
  Start(server::RpcOptions());
  testing::internal::CaptureStderr();
  for (int i = 0; i < 500; ++i) {
    Context context;
    v1::JoinRequest request;
    request.set_job(absl::StrCat("job-", i));
    v1::JoinResponse response;
    EXPECT_THAT(FromGrpcStatus(rendezvous_->Join(&context, request, &response)),
                StatusIs(absl::StatusCode::kInvalidArgument, _));
  }
  const std::vector<std::string> lines = absl::StrSplit(
      testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  // A slow machine may take more than a minute.
  EXPECT_LE(lines.size(), 20u);
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr(" I join_refused job=job-0 "),
                                    HasSubstr("peer=ipv4:127.0.0.1:"))));
}

// gRPC has two ways to mark a message as compressed, which can contradict each
// other: the flag of a call that names no encoding means nothing, and nothing
// is decompressed.
TEST_F(LimitsTest, TheCompressedFlagAloneMeansNothing) {
  Start(server::RpcOptions());
  v1::SetRequest request;
  *request.mutable_fence() = fence_;
  request.mutable_fence()->set_request_id(++requests_);
  request.set_key("flagged");
  request.set_value("value");
  BareClient client(coordinator_->port());
  client.Send(absl::StrCat(BareClient::Preface(),
                           Http2Frame(kHttp2Headers, kHttp2EndHeaders, 1,
                                      GrpcHeaders("/coxswain.v1.Store/Set")),
                           Http2Frame(kHttp2Data, kHttp2EndStream, 1,
                                      GrpcMessage(request.SerializeAsString(),
                                                  /*compressed=*/true))));
  EXPECT_TRUE(client.Receives("grpc-status"));
  Context context;
  v1::GetRequest get;
  *get.mutable_fence() = fence_;
  get.set_key("flagged");
  v1::GetResponse response;
  EXPECT_OK(FromGrpcStatus(store_->Get(&context, get, &response)));
  EXPECT_EQ(response.value(), "value");
}

TEST_F(LimitsTest, ALeaveHasNoMorePositionsThanTheLimit) {
  Start(server::RpcOptions());
  const auto leave = [this](int positions) {
    Context context;
    v1::LeaveRequest request;
    *request.mutable_fence() = fence_;
    for (int i = 0; i < positions; ++i) {
      request.add_positions()->mutable_last()->set_stream(
          absl::StrCat("stream", i % 8));
    }
    v1::LeaveResponse response;
    return FromGrpcStatus(rendezvous_->Leave(&context, request, &response));
  };
  EXPECT_THAT(leave(257), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("at most 256 positions")));
  EXPECT_OK(leave(8));
}

// The fallback coordinator, while no coordinator can be reached.
class FallbackLimitsTest : public testing::Test {
 protected:
  FallbackLimitsTest() { Start(); }

  void Start() {
    FallbackCoordinator::Options options;
    options.world_size = 2;
    options.plan = [] { return schedule::Plan(); };
    const auto coordinator = std::make_shared<FallbackCoordinator>(options);
    auto server = FallbackServer::Start("127.0.0.1", coordinator);
    EXPECT_OK(server);
    server_ = *std::move(server);
    const std::vector<std::string> parts =
        absl::StrSplit(server_->address(), ':');
    EXPECT_TRUE(absl::SimpleAtoi(parts.back(), &port_));
  }

  std::unique_ptr<FallbackServer> server_;
  int port_ = 0;
};

TEST_F(FallbackLimitsTest, AConnectionHasNoMoreStreamsThanTheLimit) {
  BareClient client(port_);
  client.Send(BareClient::Preface());
  EXPECT_EQ(client.Setting(3), 8u);
}

// What this process may have of them, while it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t few) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = few;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~FewDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_ = {};
};

TEST_F(FallbackLimitsTest, SomeDescriptorsAreLeftToTheWorker) {
  constexpr int kDescriptors = 256;
  constexpr int kMost = 192;
  {
    // Not any longer: the clients' ends are of this process too.
    const FewDescriptors few(kDescriptors);
    Start();
  }
  std::vector<std::unique_ptr<BareClient>> clients;
  for (int i = 0; i < kMost; ++i) {
    clients.push_back(std::make_unique<BareClient>(port_));
    clients.back()->Send(BareClient::Preface());
    ASSERT_EQ(clients.back()->Setting(3), 8u) << i;
  }
  const std::string ping = Http2Frame(kHttp2Ping, 0, 0, "12345678");
  const auto is_served = [&](BareClient* client) {
    client->Send(ping);
    return client->Receives("12345678");
  };
  BareClient another(port_);
  another.Send(BareClient::Preface());
  EXPECT_FALSE(another.Receives("12345678"));
  // Open connections stay, and one that closes frees its place, some time
  // later.
  EXPECT_TRUE(is_served(clients.front().get()));
  clients.pop_back();
  for (bool served = false; !served;) {
    BareClient next(port_);
    next.Send(absl::StrCat(BareClient::Preface(), ping));
    served = next.Receives("12345678");
  }
}

TEST_F(FallbackLimitsTest, TheOldestOfTooManyThatDoNotGreetIsSentAway) {
  constexpr size_t kMost = 64;
  struct Attachment {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericStub> stub;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::Status status;
  };
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    return static_cast<Attachment*>(tag);
  };
  std::vector<std::unique_ptr<Attachment>> attachments(kMost + 1);
  for (auto& attachment : attachments) {
    attachment = std::make_unique<Attachment>();
    // A connection of its own.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    attachment->stub =
        std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
            server_->address(), grpc::InsecureChannelCredentials(), arguments));
    attachment->stream = attachment->stub->PrepareCall(
        &attachment->context, "/coxswain.v1.Rendezvous/Attach", &queue);
    attachment->stream->StartCall(attachment.get());
    next();
  }
  for (const auto& attachment : attachments) {
    attachment->stream->Finish(&attachment->status, attachment.get());
  }
  // Not because of its silence, for which it would have had 10 s.
  EXPECT_EQ(next()->status.error_code(), grpc::StatusCode::CANCELLED);
  for (const auto& attachment : attachments) attachment->context.TryCancel();
  for (size_t i = 0; i < kMost; ++i) next();
  queue.Shutdown();
}

}  // namespace
}  // namespace coxswain
