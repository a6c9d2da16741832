// The Rendezvous service over a real gRPC server on loopback, and a state store
// that commits when a test wants it to.
#include "server/rpc/rendezvous_service.h"

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/grpc_status.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "schedule/ticket.h"
#include "server/plan/plan_store.h"
#include "server/state/direct_writer.h"
#include "server/state/memory_state_store.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr char kTrain[] = "train";

schedule::Ticket MakeTicket(int64_t round) {
  schedule::Ticket ticket;
  ticket.round = ticket.step = round;
  ticket.micro_batches = ticket.window = 1;
  ticket.weight = 1;
  ticket.plan_version = 1;
  ticket.hook = "allreduce";
  return ticket;
}

// What a test waits for: numbers that others count up.
class Counts {
 public:
  // A change of what some Await looks at.
  template <typename Change>
  void Note(Change change) {
    MutexLock lock(&mutex_);
    change();
    changed_.NotifyAll();
  }
  // False: not within a minute. The condition runs without changes meanwhile.
  template <typename Condition>
  bool Await(Condition condition) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, absl::Minutes(1), condition);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
};

// Notes the tables of what it writes, in their order; while it is held, nothing
// is written.
class HeldWriter : public DirectWriter {
 public:
  HeldWriter(StateStore* store, Counts* counts)
      : DirectWriter(store), counts_(*counts) {}

  void Write(StateBatch batch, Done done) override {
    counts_.Note([&] {
      for (const StateBatch::Write& write : batch.writes()) {
        records.push_back(absl::StrCat(write.table, "/", write.key));
      }
    });
    Take([this, batch = std::move(batch), done = std::move(done)] {
      DirectWriter::Write(batch, done);
    });
  }
  void AfterWritten(std::function<void()> done) override {
    Take(std::move(done));
    counts_.Note([&] { ++waiters; });
  }
  void Hold() {
    MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    while (true) {
      std::function<void()> next;
      {
        MutexLock lock(&mutex_);
        held_ = !queue_.empty();
        if (!held_) return;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      next();
    }
  }

  // To be looked at in Counts::Await.
  int waiters = 0;
  std::vector<std::string> records;

 private:
  void Take(std::function<void()> act) {
    {
      MutexLock lock(&mutex_);
      if (held_) return queue_.push_back(std::move(act));
    }
    act();
  }

  Counts& counts_;
  Mutex mutex_;
  bool held_ = false;
  std::deque<std::function<void()>> queue_;
};

class RendezvousServiceTest : public testing::Test {
 public:
  // Every call of a test ends within this, whatever happens.
  struct Context : grpc::ClientContext {
    Context() {
      set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    }
  };

 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(PlanOptions(), &writer_));
    ASSERT_OK_AND_ASSIGN(
        membership_,
        Membership::Open(MembershipOptions(), {&clock_, RandomSource::System(),
                                               &writer_, plans_.get()}));
    schedule_ = std::make_unique<ScheduleRegistry>(
        ScheduleLimits(),
        ScheduleRegistry::Dependencies{&clock_, membership_.get(), plans_.get(),
                                       &writer_});
    membership_->AddObserver(plans_.get());
    membership_->AddObserver(schedule_.get());
    ASSERT_OK(membership_->Resume());
    service_ = std::make_unique<RendezvousService>(
        RpcOptions(), membership_.get(), schedule_.get());
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::Rendezvous::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    writer_.Release();
    membership_->Shutdown();
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  // A running job; fences by rank.
  std::vector<Fence> Run(int world) {
    std::vector<Fence> fences(world);
    for (int slot = 0; slot < world; ++slot) {
      JoinRequest request;
      request.job = "job";
      request.identity = {"host-a", slot};
      request.incarnation = Incarnation(slot + 1);
      request.host = "host-a";
      request.address = "host-a:1";
      request.manifest.world_size = world;
      request.manifest.hook = "allreduce";
      request.manifest.accumulation_steps = 1;
      request.timeout = absl::Seconds(30);
      membership_->Join(request, [&fences, slot](auto joined) {
        ASSERT_OK(joined);
        fences[joined->rank] = {
            joined->cluster_id, joined->term,          "job",
            joined->generation, Incarnation(slot + 1), 1};
      });
    }
    return fences;
  }
  absl::StatusOr<v1::MembersResponse> Members(const Fence& fence, int first,
                                              int count) {
    Context context;
    v1::MembersRequest request;
    v1::MembersResponse response;
    *request.mutable_fence() = ToProto(fence);
    request.set_first_rank(first);
    request.set_count(count);
    const grpc::Status status = stub_->Members(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }
  static v1::Fence ToProto(const Fence& fence) {
    v1::Fence proto;
    proto.set_cluster_id(fence.cluster_id);
    proto.set_term(fence.term.value());
    proto.set_job(fence.job);
    proto.set_generation(fence.generation.value());
    proto.set_incarnation(fence.incarnation.value());
    return proto;
  }

  FakeClock clock_;
  MemoryStateStore store_;
  Counts counts_;
  HeldWriter writer_{&store_, &counts_};
  std::unique_ptr<PlanStore> plans_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<ScheduleRegistry> schedule_;
  std::unique_ptr<RendezvousService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Rendezvous::Stub> stub_;
};

TEST_F(RendezvousServiceTest, APageOfMembersIsBounded) {
  constexpr int kWorld = 1100;
  const std::vector<Fence> fences = Run(kWorld);
  ASSERT_OK_AND_ASSIGN(const auto first, Members(fences[0], 0, kWorld));
  ASSERT_EQ(first.members_size(), 1024);
  EXPECT_EQ(first.members(1023).rank(), 1023);
  ASSERT_OK_AND_ASSIGN(const auto rest, Members(fences[0], 1024, kWorld));
  ASSERT_EQ(rest.members_size(), kWorld - 1024);
  EXPECT_EQ(rest.members(0).rank(), 1024);
  ASSERT_OK_AND_ASSIGN(const auto none, Members(fences[0], 0, -1));
  EXPECT_EQ(none.members_size(), 0);
}

// A join of a job of one worker.
v1::JoinRequest JoinAlone(const std::string& job, bool encrypts) {
  v1::JoinRequest request;
  request.set_job(job);
  request.mutable_identity()->set_node("host-a");
  request.set_incarnation(1);
  request.set_host("host-a");
  request.set_address("host-a:1");
  request.mutable_manifest()->set_world_size(1);
  request.mutable_manifest()->set_hook("allreduce");
  request.mutable_manifest()->set_accumulation_steps(1);
  request.set_timeout_ms(30000);
  request.set_encrypts(encrypts);
  return request;
}

TEST_F(RendezvousServiceTest, AKeyIsForThoseWhoEncrypt) {
  const auto join = [this](const std::string& job, bool encrypts) {
    Context context;
    v1::JoinResponse response;
    EXPECT_OK(FromGrpcStatus(
        stub_->Join(&context, JoinAlone(job, encrypts), &response)));
    return response.data_key();
  };
  // Over the loopback, where a proxy may have ended TLS.
  const std::string key = join("job-a", true);
  EXPECT_EQ(key.size(), 32u);
  EXPECT_EQ(join("job-a", true), key) << "its answer was lost";
  EXPECT_EQ(join("job-b", false), "");
  EXPECT_NE(join("job-c", true), key);
}

TEST_F(RendezvousServiceTest, NoKeyLeavesThisMachineInPlainText) {
  // A transport that is neither TLS nor the loopback.
  const std::string address = absl::StrCat(
      "unix-abstract:rendezvous-service-test-", RandomSource::System()->Next());
  for (const bool encrypts : {false, true}) {
    RendezvousService service(RpcOptions(), membership_.get(), schedule_.get(),
                              {}, Clock::Real(), encrypts);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    const auto server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
    const auto stub = v1::Rendezvous::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    Context context;
    v1::JoinResponse response;
    EXPECT_OK(FromGrpcStatus(stub->Join(
        &context, JoinAlone(encrypts ? "job-a" : "job-b", true), &response)));
    EXPECT_EQ(response.data_key().size(), encrypts ? 32u : 0u);
    server->Shutdown(std::chrono::system_clock::now());
    server->Wait();
  }
}

// One call that runs beside others.
template <typename Request, typename Response>
struct Call {
  RendezvousServiceTest::Context context;
  Request request;
  Response response;
  grpc::Status status;
};

TEST_F(RendezvousServiceTest, DescriptionsUnderWayAreBounded) {
  constexpr int kCalls = 80;
  constexpr int kBound = 64;
  Run(1);
  writer_.Hold();
  using Describe = Call<v1::DescribeRequest, v1::DescribeResponse>;
  std::vector<std::unique_ptr<Describe>> calls;
  int answered = 0;
  const int before = writer_.waiters;
  for (int i = 0; i < kCalls; ++i) {
    Describe* const call =
        calls.emplace_back(std::make_unique<Describe>()).get();
    stub_->async()->Describe(&call->context, &call->request, &call->response,
                             [&, call](grpc::Status status) {
                               call->status = std::move(status);
                               counts_.Note([&] { ++answered; });
                             });
  }
  // Those that are answered at once are one too many.
  int refused = 0;
  ASSERT_TRUE(counts_.Await([&] {
    refused = answered;
    return writer_.waiters - before + answered == kCalls;
  }));
  EXPECT_GE(refused, kCalls - kBound);
  EXPECT_LT(refused, kCalls);
  writer_.Release();
  ASSERT_TRUE(counts_.Await([&] { return answered == kCalls; }));
  int told = 0;
  for (const auto& call : calls) {
    const absl::Status status = FromGrpcStatus(call->status);
    if (status.ok()) continue;
    ++told;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("more than 64 descriptions")));
  }
  EXPECT_EQ(told, refused);
  // They have made room.
  Describe last;
  EXPECT_OK(FromGrpcStatus(
      stub_->Describe(&last.context, last.request, &last.response)));
  EXPECT_THAT(last.response.jobs(), SizeIs(1));
}

TEST_F(RendezvousServiceTest, WhatAMemberHasReceivedIsWrittenBeforeItsLeave) {
  const std::vector<Fence> fences = Run(1);
  ASSERT_OK_AND_ASSIGN(
      const uint64_t attachment,
      membership_->Attach(fences[0], [](const AttachEvent&) {}));
  ASSERT_OK_AND_ASSIGN(const AttachedRank attached,
                       membership_->AttachedRankOf(attachment));
  schedule_->OnAttached(attached);
  ASSERT_OK(schedule_->OnTicket(attached, kTrain, MakeTicket(0)));
  writer_.Hold();
  const size_t before = writer_.records.size();
  Call<v1::LeaveRequest, v1::LeaveResponse> leave;
  *leave.request.mutable_fence() = ToProto(fences[0]);
  v1::Decision* const received = leave.request.add_positions()->mutable_last();
  received->set_stream(kTrain);
  received->set_commit(true);
  bool answered = false;
  stub_->async()->Leave(&leave.context, &leave.request, &leave.response,
                        [&](grpc::Status status) {
                          leave.status = std::move(status);
                          counts_.Note([&] { answered = true; });
                        });
  ASSERT_TRUE(counts_.Await(
      [&] { return answered || writer_.records.size() >= before + 2; }));
  EXPECT_FALSE(answered) << FromGrpcStatus(leave.status);
  EXPECT_THAT(std::vector<std::string>(writer_.records.begin() + before,
                                       writer_.records.end()),
              ElementsAre(HasSubstr(kTrain), HasSubstr("gone/")));
  writer_.Release();
  ASSERT_TRUE(counts_.Await([&] { return answered; }));
  EXPECT_OK(FromGrpcStatus(leave.status));
}

TEST_F(RendezvousServiceTest, ALeavingMemberReportsItsPosition) {
  const std::vector<Fence> fences = Run(2);
  ASSERT_OK(membership_->Attach(fences[0], [](const AttachEvent&) {}));
  for (const Fence& fence : fences) {
    Context context;
    v1::LeaveRequest request;
    *request.mutable_fence() = ToProto(fence);
    request.mutable_progress()->set_step(4000);
    v1::LeaveResponse response;
    EXPECT_OK(FromGrpcStatus(stub_->Leave(&context, request, &response)));
  }
  ASSERT_OK_AND_ASSIGN(const auto jobs, membership_->Describe("job"));
  EXPECT_EQ(jobs.at(0).members.at(0).progress.step, 4000);
  EXPECT_EQ(jobs.at(0).members.at(1).progress.step, 0)
      << "it was never attached";
}

// Keeps the rings that are logged.
class RingLines : public LogSink {
 public:
  explicit RingLines(Counts* counts) : counts_(*counts) { AddLogSink(this); }
  ~RingLines() override { RemoveLogSink(this); }

  void OnLine(const LogLine& line) override {
    if (line.event != "ring_ordered") return;
    counts_.Note(
        [&] { lines.push_back(FormatLogLine(LogFormat::kJson, line)); });
  }

  // To be looked at in Counts::Await.
  std::vector<std::string> lines;

 private:
  Counts& counts_;
};

TEST_F(RendezvousServiceTest, EachRingOfAWorkerIsLoggedOnce) {
  const std::vector<Fence> fences = Run(1);
  RingLines rings(&counts_);
  Context context;
  const auto stream = stub_->Attach(&context);
  v1::AttachRequest hello;
  *hello.mutable_hello()->mutable_fence() = ToProto(fences[0]);
  ASSERT_TRUE(stream->Write(hello));
  for (const char* ring : {"", "0 2 1", "0 2 1", "0 1\n2"}) {
    v1::AttachRequest request;
    request.mutable_heartbeat()->set_ring(ring);
    ASSERT_TRUE(stream->Write(request));
  }
  EXPECT_TRUE(counts_.Await([&] { return rings.lines.size() == 2; }));
  // All messages of the stream have been read once it has ended.
  stream->WritesDone();
  v1::AttachEvent event;
  while (stream->Read(&event)) {
  }
  (void)stream->Finish();
  EXPECT_THAT(rings.lines, ElementsAre(AllOf(HasSubstr("\"job\":\"job\""),
                                             HasSubstr("\"rank\":0"),
                                             HasSubstr("\"ring\":\"0 2 1\"")),
                                       HasSubstr("\"ring\":\"0 1?2\"")));
}

TEST_F(RendezvousServiceTest, MoreRingsThanAStreamMayLogAreLeftOut) {
  constexpr int kLogged = 16;
  const std::vector<Fence> fences = Run(1);
  RingLines rings(&counts_);
  // Each stream has as many.
  for (int stream_number = 1; stream_number <= 2; ++stream_number) {
    Context context;
    const auto stream = stub_->Attach(&context);
    v1::AttachRequest hello;
    *hello.mutable_hello()->mutable_fence() = ToProto(fences[0]);
    ASSERT_TRUE(stream->Write(hello));
    v1::AttachEvent event;
    ASSERT_TRUE(stream->Read(&event));
    EXPECT_TRUE(event.has_attached());
    for (int ring = 0; ring < 3 * kLogged; ++ring) {
      v1::AttachRequest request;
      request.mutable_heartbeat()->set_ring(
          absl::StrCat(stream_number, " ", ring, std::string(10000, 'x')));
      request.mutable_heartbeat()->set_step(100 * stream_number + ring);
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
    while (stream->Read(&event)) {
    }
    (void)stream->Finish();
    // All heartbeats count, whatever their ring.
    ASSERT_OK_AND_ASSIGN(const auto jobs, membership_->Describe("job"));
    EXPECT_EQ(jobs.at(0).members.at(0).progress.step,
              100 * stream_number + 3 * kLogged - 1);
    ASSERT_EQ(rings.lines.size(), static_cast<size_t>(kLogged * stream_number));
    EXPECT_THAT(rings.lines.back(),
                HasSubstr(absl::StrCat("\"ring\":\"", stream_number, " ",
                                       kLogged - 1, "x")));
    for (const std::string& line : rings.lines) EXPECT_LT(line.size(), 2000u);
  }
}

TEST_F(RendezvousServiceTest, ADrainIsReportedOnceItIsDurable) {
  const std::vector<Fence> fences = Run(1);
  std::vector<std::string> told;
  ASSERT_OK_AND_ASSIGN(
      const uint64_t attachment,
      membership_->Attach(fences[0], [&](const AttachEvent& event) {
        told.push_back(std::get<schedule::Message>(event).decision.regroup);
      }));
  ASSERT_OK_AND_ASSIGN(const AttachedRank attached,
                       membership_->AttachedRankOf(attachment));
  schedule_->OnAttached(attached);
  writer_.Hold();
  ASSERT_OK(schedule_->OnTicket(attached, kTrain, MakeTicket(0)));
  EXPECT_THAT(told, ElementsAre(""));
  schedule::Ticket drains = MakeTicket(1);
  drains.drain = "the node is needed";
  ASSERT_OK(schedule_->OnTicket(attached, kTrain, drains));
  EXPECT_THAT(told, SizeIs(1));
  writer_.Release();
  EXPECT_THAT(told, ElementsAre("", HasSubstr("the node is needed")));
  membership_->Detach(attachment);
}

}  // namespace
}  // namespace coxswain::server
