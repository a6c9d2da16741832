#include "client/comm/parameter_server/parameter_communicator.h"

#include <atomic>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/executor.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/memory_store.h"
#include "client/session/session.h"
#include "server/coordinator.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"
#include "tests/support/in_threads.h"
#include "tests/support/parameter_server.h"

namespace coxswain::parameter_communicator_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);

ParameterServer& SharedServer() {
  static auto* const server = new ParameterServer;
  return *server;
}

using Group = std::vector<std::unique_ptr<Communicator>>;

// Returns all ranks of a new job.
Group MakeGroup(int size, absl::Duration timeout) {
  static std::atomic<int64_t> generation{0};
  const int64_t own = ++generation;
  return ConnectGroup(size, timeout, [own](CommunicatorOptions options) {
    options.store = std::make_shared<MemberStore>(
        SharedServer().MakeMemberContext(absl::StrCat("job-", own), own));
    return ConnectParameterServer(options);
  });
}

CommunicatorCase ParameterServerCase() {
  CommunicatorCase result;
  result.name = "ParameterServer";
  result.make_group = MakeGroup;
  result.has_wire = true;
  // Each rank sends what it has, once.
  result.wire_share = [](int) { return 1.0; };
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(ParameterServerCase()), CaseName);

Span SpanOf(std::vector<float>* data) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  return span;
}

TEST(ParameterServerCommunicatorTest, NeedsASession) {
  CommunicatorOptions options;
  options.store = std::make_shared<MemoryStore>();
  EXPECT_THAT(ConnectParameterServer(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("does not belong to any")));
}

TEST(ParameterServerCommunicatorTest, SumsAreThoseOfTheRanksInOrder) {
  // Of values whose sum depends on the order, in several chunks.
  constexpr int kSize = 4;
  constexpr int64_t kCount = 600'001;
  const Group group = MakeGroup(kSize, absl::Minutes(1));
  const auto world = InProcessWorld::Create(kSize, absl::Minutes(1));
  std::vector<std::vector<float>> ours(kSize), theirs;
  for (int rank = 0; rank < kSize; ++rank) {
    for (int64_t i = 0; i < kCount; ++i) {
      const auto seed = static_cast<uint32_t>(i * 2654435761u + rank * 40503u);
      ours[rank].push_back(static_cast<float>(seed) *
                           (rank % 2 ? 1e-9f : 1e9f));
    }
  }
  theirs = ours;
  Group reference;
  std::vector<WorkPtr> works;
  for (int rank = kSize - 1; rank >= 0; --rank) {
    reference.push_back(world->MakeRank(rank));
    works.push_back(reference.back()->AllReduce(SpanOf(&theirs[rank])));
    works.push_back(group[rank]->AllReduce(SpanOf(&ours[rank])));
  }
  for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(ours[rank], theirs[0]) << "rank " << rank;
  }
}

TEST(ParameterServerCommunicatorTest, DifferentCollectivesAreDistinguished) {
  const Group group = MakeGroup(2, absl::Minutes(1));
  std::vector<float> two(2);
  std::vector<float> three(3);
  const WorkPtr first = group[0]->AllReduce(SpanOf(&two));
  const WorkPtr second = group[1]->AllReduce(SpanOf(&three));
  for (const WorkPtr& work : {first, second}) {
    EXPECT_THAT(work->Wait(kSoon),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("of 8 bytes of float32"),
                               HasSubstr("of 12 bytes of float32"))));
  }
  const WorkPtr third = group[0]->Barrier();
  const WorkPtr fourth = group[1]->Barrier();
  EXPECT_OK(third->Wait(kSoon));
  EXPECT_OK(fourth->Wait(kSoon));
}

TEST(ParameterServerCommunicatorTest, TheEndOfTheGenerationEndsIt) {
  const auto member = SharedServer().MakeMemberContext("ending", 1'000'000);
  const Group group =
      ConnectGroup(2, absl::Minutes(1), [&](CommunicatorOptions options) {
        options.store = std::make_shared<MemberStore>(member);
        return ConnectParameterServer(options);
      });
  const WorkPtr waiting = group[0]->Barrier();
  SharedServer().parameters().OnGenerationEnded(
      "ending", Generation(1'000'000), absl::AbortedError("rank 1 was lost"));
  EXPECT_THAT(waiting->Wait(kSoon), StatusIs(absl::StatusCode::kAborted,
                                             HasSubstr("rank 1 was lost")));
  EXPECT_THAT(group[1]->Barrier()->Wait(kSoon),
              StatusIs(absl::StatusCode::kAborted, testing::_));
}

TEST(ParameterServerCommunicatorTest, AServerThatEndsIsUnavailable) {
  auto server = std::make_unique<ParameterServer>();
  const auto member = server->MakeMemberContext("job", 1);
  const Group group =
      ConnectGroup(2, absl::Minutes(1), [&](CommunicatorOptions options) {
        options.store = std::make_shared<MemberStore>(member);
        return ConnectParameterServer(options);
      });
  const WorkPtr waiting = group[0]->Barrier();
  server = nullptr;
  EXPECT_THAT(waiting->Wait(kSoon), StatusIs(absl::StatusCode::kUnavailable,
                                             HasSubstr("barrier of rank 0")));
}

TEST(ParameterServerCommunicatorTest, TensorsHaveALimit) {
  server::ParameterLimits limits;
  limits.max_tensor_bytes = 1000;
  ParameterServer server(limits);
  const auto member = server.MakeMemberContext("job", 1);
  const Group group =
      ConnectGroup(2, absl::Minutes(1), [&](CommunicatorOptions options) {
        options.store = std::make_shared<MemberStore>(member);
        return ConnectParameterServer(options);
      });
  std::vector<float> large(251);
  EXPECT_THAT(group[0]->AllReduce(SpanOf(&large))->Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_tensor_bytes")));
}

TEST(ParameterServerCommunicatorTest, BytesOfAJobHaveALimit) {
  server::ParameterLimits limits;
  limits.max_job_bytes = 4 << 20;
  ParameterServer server(limits);
  const auto member = server.MakeMemberContext("job", 1);
  const Group group =
      ConnectGroup(2, absl::Minutes(1), [&](CommunicatorOptions options) {
        options.store = std::make_shared<MemberStore>(member);
        return ConnectParameterServer(options);
      });
  // All of it is held until the other rank comes.
  std::vector<std::vector<float>> large(2, std::vector<float>(1'200'000));
  for (size_t rank = 0; rank < group.size(); ++rank) {
    EXPECT_THAT(group[rank]->AllReduce(SpanOf(&large[rank]))->Wait(kSoon),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("max_job_bytes of 4194304")));
  }
}

TEST(ParameterServerCommunicatorTest, ALimitOfTheStreamIsReportedAsOne) {
  server::ParameterLimits limits;
  limits.max_operations = 2;
  ParameterServer server(limits);
  const auto member = server.MakeMemberContext("job", 1);
  const Group group =
      ConnectGroup(2, absl::Minutes(1), [&](CommunicatorOptions options) {
        options.store = std::make_shared<MemberStore>(member);
        return ConnectParameterServer(options);
      });
  std::vector<WorkPtr> works;
  for (int i = 0; i < 3; ++i) works.push_back(group[0]->Barrier());
  EXPECT_THAT(works.front()->Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_operations of 2")));
}

TEST(ParameterServerCommunicatorTest, AGroupIsNotLargerThanItsWorld) {
  CommunicatorOptions options;
  options.id = "large";
  options.size = 17;
  options.timeout = kSoon;
  options.store = std::make_shared<MemberStore>(
      SharedServer().MakeMemberContext("large", 2'000'000));
  EXPECT_THAT(ConnectParameterServer(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("17 ranks in a world of 16")));
}

TEST(ParameterServerCommunicatorTest, AMessageThatIsRefusedTakesNoNumber) {
  constexpr uint32_t kTag = 1'000'000;
  const Group group = MakeGroup(2, absl::Minutes(1));
  std::vector<std::vector<float>> data(Executor::kMaxMessages,
                                       std::vector<float>(1));
  std::vector<float> value = {7}, received(1);
  std::vector<WorkPtr> works;
  for (uint32_t tag = 0; tag < data.size(); ++tag) {
    works.push_back(group[0]->Receive(SpanOf(&data[tag]), 1, tag));
  }
  EXPECT_THAT(group[0]->Receive(SpanOf(&received), 1, kTag)->Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("let some end first")));
  for (uint32_t tag = 0; tag < data.size(); ++tag) {
    ASSERT_OK(group[1]->Send(SpanOf(&value), 0, tag)->Wait(kSoon));
    ASSERT_OK(works[tag]->Wait(kSoon));
  }
  const WorkPtr again = group[0]->Receive(SpanOf(&received), 1, kTag);
  ASSERT_OK(group[1]->Send(SpanOf(&value), 0, kTag)->Wait(kSoon));
  ASSERT_OK(again->Wait(kSoon));
  EXPECT_EQ(received, value);
}

TEST(ParameterServerCommunicatorTest, NothingIsLeftAtTheServer) {
  ParameterServer server;
  const auto member = server.MakeMemberContext("job", 1);
  {
    const Group group =
        ConnectGroup(3, absl::Minutes(1), [&](CommunicatorOptions options) {
          options.store = std::make_shared<MemberStore>(member);
          return ConnectParameterServer(options);
        });
    std::vector<std::vector<float>> data(3, std::vector<float>(700'000, 1.0f));
    std::vector<WorkPtr> works;
    for (int rank = 0; rank < 3; ++rank) {
      works.push_back(group[rank]->AllReduce(SpanOf(&data[rank])));
      works.push_back(group[rank]->Broadcast(SpanOf(&data[rank]), 1));
    }
    for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
    // Ends at all ranks only when all have been sent everything.
    works.clear();
    for (int rank = 0; rank < 3; ++rank)
      works.push_back(group[rank]->Barrier());
    for (const WorkPtr& work : works) ASSERT_OK(work->Wait(kSoon));
  }
  server.Shutdown();
  EXPECT_EQ(server.parameters().bytes(), 0);
}

TEST(ParameterServerCommunicatorTest, RanksOfASessionExchangeByTheService) {
  server::CoordinatorOptions options;
  options.state_dir =
      absl::StrCat(testing::TempDir(), "/parameter_communicator");
  ASSERT_OK_AND_ASSIGN(const auto coordinator,
                       server::Coordinator::Start(options));
  InThreads(2, [&](int slot) {
    SessionOptions session_options;
    session_options.coordinator =
        absl::StrCat("127.0.0.1:", coordinator->port());
    session_options.job = "mnist";
    session_options.identity = {"host-a", slot};
    session_options.host = "host-a";
    session_options.local_rank = slot;
    session_options.world_size = 2;
    session_options.backend = "parameter_server";
    session_options.join_timeout = kSoon;
    session_options.collective_timeout = kSoon;
    ASSERT_OK_AND_ASSIGN(const auto session,
                         Session::Join(session_options, {}));
    ASSERT_OK_AND_ASSIGN(const auto world, session->World());
    EXPECT_EQ(world->communicator().backend(), "parameter_server");
    std::vector<float> values(1000, static_cast<float>(session->rank() + 1));
    EXPECT_OK(world->communicator().AllReduce(SpanOf(&values))->Wait(kSoon));
    EXPECT_EQ(values, std::vector<float>(1000, 3.0f));
    EXPECT_OK(world->communicator().Barrier()->Wait(kSoon));
    EXPECT_OK(session->Leave("done"));
  });
}

}  // namespace
}  // namespace coxswain::parameter_communicator_test
