// The journal over a real connection.
#include "server/rpc/journal_service.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "transport/bulk_channel.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

JournalEvent Event(const std::string& job, const std::string& name) {
  JournalEvent event;
  event.job = job;
  event.event = name;
  event.level = "info";
  event.rank = 3;
  event.fields = {{"reason", "told so"}};
  return event;
}

class JournalServiceTest : public testing::Test {
 protected:
  void Start(const FollowLimits& limits = {}) {
    JournalService::Source source;
    source.journal = &journal_;
    source.clock = &clock_;
    source.cluster_id = "c1";
    source.term = 2;
    service_ = std::make_unique<JournalService>(source, limits);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    // As real clients do. Otherwise gRPC's own windows grow, at times to more
    // than a test sends.
    grpc::ChannelArguments arguments;
    bulk::ConfigureBulkChannel([&arguments](const char* name, int value) {
      arguments.SetInt(name, value);
    });
    stub_ = v1::Journal::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials(),
        arguments));
  }
  void TearDown() override { server_->Shutdown(); }

  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() +
                          std::chrono::seconds(20));
    return context;
  }
  void Note(const std::string& job, const std::string& name) {
    JournalEvent event = Event(job, name);
    event.time = clock_.WallTime();
    journal_.Note(std::move(event));
  }
  absl::Status Read(const v1::JournalRequest& request, v1::JournalPage* page) {
    return FromGrpcStatus(stub_->Read(Context().get(), request, page));
  }

  FakeClock clock_;
  Journal journal_{[] {
    JournalLimits limits;
    limits.max_events_per_job = 300;
    return limits;
  }()};
  std::unique_ptr<JournalService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Journal::Stub> stub_;
};

TEST_F(JournalServiceTest, ReadsOneJobWithAllItsFields) {
  Start();
  Note("a", "joined");
  Note("b", "joined");
  v1::JournalRequest request;
  request.set_job("b");
  v1::JournalPage page;
  ASSERT_OK(Read(request, &page));
  EXPECT_EQ(page.cluster_id(), "c1");
  EXPECT_EQ(page.term(), 2);
  ASSERT_EQ(page.events_size(), 1);
  const v1::JournalEvent& event = page.events(0);
  EXPECT_EQ(event.sequence(), 2);
  EXPECT_EQ(event.unix_us(), absl::ToUnixMicros(clock_.WallTime()));
  EXPECT_EQ(event.job(), "b");
  EXPECT_EQ(event.rank(), 3);
  EXPECT_EQ(event.step(), -1);
  ASSERT_EQ(event.fields_size(), 1);
  EXPECT_EQ(event.fields(0).value(), "told so");
}

TEST_F(JournalServiceTest, ReadsAPageAtATimeAndOnlyWhatIsNew) {
  Start();
  for (int i = 0; i < 200; ++i) Note("a", "old");
  clock_.Advance(absl::Minutes(10));
  Note("a", "new");
  v1::JournalRequest request;
  v1::JournalPage page;
  ASSERT_OK(Read(request, &page));
  EXPECT_EQ(page.events_size(), 128);
  request.set_since_ms(1000);
  ASSERT_OK(Read(request, &page));
  ASSERT_EQ(page.events_size(), 1) << "the old ones fill more than a page";
  EXPECT_EQ(page.events(0).event(), "new");
  request.set_after(201);
  ASSERT_OK(Read(request, &page));
  EXPECT_EQ(page.events_size(), 0);
}

TEST_F(JournalServiceTest, SequencesOfAnotherTermAreIgnored) {
  Start();
  Note("a", "joined");
  v1::JournalRequest request;
  request.set_after(77);
  request.set_term(1);
  v1::JournalPage page;
  ASSERT_OK(Read(request, &page));
  EXPECT_EQ(page.events_size(), 1);
  request.set_term(2);
  ASSERT_OK(Read(request, &page));
  EXPECT_EQ(page.events_size(), 0);
  request.set_after(-1);
  EXPECT_THAT(Read(request, &page),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1")));
}

TEST_F(JournalServiceTest, AGapIsReportedToTheReader) {
  Start();
  for (int i = 0; i < 400; ++i) Note("a", "step");
  v1::JournalRequest request;
  v1::JournalPage page;
  ASSERT_OK(Read(request, &page));
  EXPECT_FALSE(page.gap()) << "who begins has missed nothing";
  request.set_after(50);
  ASSERT_OK(Read(request, &page));
  EXPECT_TRUE(page.gap());
  EXPECT_EQ(page.events(0).sequence(), 101);
  request.set_after(100);
  ASSERT_OK(Read(request, &page));
  EXPECT_FALSE(page.gap());
}

TEST_F(JournalServiceTest, FollowsWhatComesUntilTheJournalCloses) {
  Start();
  Note("a", "joined");
  v1::JournalRequest request;
  request.set_job("a");
  const auto context = Context();
  const auto stream = stub_->Follow(context.get(), request);
  v1::JournalPage page;
  ASSERT_TRUE(stream->Read(&page));
  EXPECT_EQ(page.events(0).event(), "joined");
  Note("b", "joined");
  Note("a", "left");
  journal_.Tick();
  ASSERT_TRUE(stream->Read(&page));
  ASSERT_EQ(page.events_size(), 1);
  EXPECT_EQ(page.events(0).event(), "left");
  journal_.Close();
  EXPECT_FALSE(stream->Read(&page));
  EXPECT_THAT(
      FromGrpcStatus(stream->Finish()),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
}

TEST_F(JournalServiceTest, AStreamEndsAfterItsTime) {
  FollowLimits limits;
  limits.max_time = absl::Milliseconds(20);
  Start(limits);
  const auto context = Context();
  const auto stream = stub_->Follow(context.get(), {});
  v1::JournalPage page;
  EXPECT_FALSE(stream->Read(&page));
  EXPECT_THAT(FromGrpcStatus(stream->Finish()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("asked for anew")));
}

TEST_F(JournalServiceTest, NoMoreMayFollowThanTheLimit) {
  FollowLimits limits;
  limits.max_followers = 1;
  Start(limits);
  Note("a", "joined");
  const auto first_context = Context();
  const auto first = stub_->Follow(first_context.get(), {});
  v1::JournalPage page;
  ASSERT_TRUE(first->Read(&page));
  const auto second_context = Context();
  const auto second = stub_->Follow(second_context.get(), {});
  EXPECT_FALSE(second->Read(&page));
  EXPECT_THAT(FromGrpcStatus(second->Finish()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1 follow the journal already")));
  // Once the coordinator has noticed that one left, another is accepted.
  first_context->TryCancel();
  first->Finish();
  absl::Status third;
  do {
    const auto context = Context();
    const auto stream = stub_->Follow(context.get(), {});
    if (stream->Read(&page)) {
      context->TryCancel();
      third = absl::OkStatus();
    }
    const absl::Status ended = FromGrpcStatus(stream->Finish());
    if (absl::IsCancelled(ended)) break;
    third = ended;
  } while (absl::IsResourceExhausted(third));
  EXPECT_OK(third);
}

TEST_F(JournalServiceTest, AStalledReaderHoldsNothingUp) {
  Start();
  Note("a", "first");
  const auto context = Context();
  const auto stream = stub_->Follow(context.get(), {});
  v1::JournalPage page;
  ASSERT_TRUE(stream->Read(&page));
  for (int i = 0; i < 2000; ++i) {
    JournalEvent event = Event("a", "flood");
    event.fields = {{"text", std::string(3000, 'x')}};
    journal_.Note(event);
    if (i % 10 == 0) journal_.Tick();
  }
  Note("a", "last");
  journal_.Tick();
  bool gap = false;
  std::string newest;
  while (newest != "last" && stream->Read(&page)) {
    gap = gap || page.gap();
    newest = page.events(page.events_size() - 1).event();
  }
  EXPECT_EQ(newest, "last");
  EXPECT_TRUE(gap);
}

}  // namespace
}  // namespace coxswain::server
