#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "tests/conformance/communicator_conformance.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kSoon = absl::Seconds(20);

std::vector<std::unique_ptr<Communicator>> MakeGroup(int size,
                                                     absl::Duration timeout) {
  auto world = InProcessWorld::Create(size, timeout);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < size; ++rank) {
    group.push_back(world->MakeRank(rank));
  }
  return group;
}

CommunicatorCase InProcessCase() {
  CommunicatorCase result;
  result.name = "InProcess";
  result.make_group = MakeGroup;
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(InProcessCase()), CaseName);

Span SpanOf(std::vector<float>* data) {
  Span span;
  span.data = data->data();
  span.count = static_cast<int64_t>(data->size());
  return span;
}

TEST(InProcessCommunicatorTest, DifferentCollectivesAreDistinguished) {
  auto group = MakeGroup(2, absl::Minutes(1));
  std::vector<float> two(2);
  std::vector<float> three(3);
  const WorkPtr first = group[0]->AllReduce(SpanOf(&two));
  const WorkPtr second = group[1]->AllReduce(SpanOf(&three));
  for (const WorkPtr& work : {first, second}) {
    EXPECT_THAT(work->Wait(kSoon),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("rank 0 all-reduce (sum) of 2 x float32")));
  }
}

TEST(InProcessCommunicatorTest, AMessageOfAnotherSizeIsRefusedAtBothEnds) {
  auto group = MakeGroup(2, absl::Minutes(1));
  std::vector<float> two(2);
  std::vector<float> three(3);
  const WorkPtr send = group[0]->Send(SpanOf(&two), 1, 9);
  const WorkPtr receive = group[1]->Receive(SpanOf(&three), 0, 9);
  for (const WorkPtr& work : {send, receive}) {
    EXPECT_THAT(work->Wait(kSoon), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("tag 9")));
  }
}

TEST(InProcessCommunicatorTest, AbortOfOneRankBreaksTheOthersWaits) {
  auto group = MakeGroup(3, absl::Minutes(1));
  const WorkPtr waiting = group[0]->Barrier();
  group[2]->Abort("tired");
  EXPECT_THAT(waiting->Wait(kSoon),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("1, 2")));
}

TEST(InProcessCommunicatorTest, MessagesHaveALimit) {
  auto group = MakeGroup(2, absl::Minutes(1));
  std::vector<float> one(1);
  WorkPtr last;
  for (int i = 0; i < 257; ++i) {
    last = group[0]->Receive(SpanOf(&one), 1, static_cast<uint32_t>(i));
  }
  EXPECT_THAT(last->Wait(kSoon),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("256")));
}

}  // namespace
}  // namespace coxswain
