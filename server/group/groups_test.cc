#include "server/group/groups.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "server/state/direct_writer.h"
#include "server/state/memory_state_store.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class GroupsTest : public testing::Test {
 protected:
  GroupsTest() : groups_(MakeLimits(), &clock_, &writer_) {}

  static GroupLimits MakeLimits() {
    GroupLimits limits;
    limits.max_groups = 12;
    limits.max_barriers = 2;
    return limits;
  }
  static Fence FenceOf(int rank, uint64_t request = 0, int64_t generation = 1) {
    Fence fence;
    fence.job = "job";
    fence.generation = Generation(generation);
    fence.incarnation = Incarnation(100 + rank);
    fence.request_id = request;
    return fence;
  }
  static Caller CallerOf(int rank) { return {{"node", rank}, rank, 4}; }

  // A barrier call whose answer is found in `answers_` at this position.
  Groups::CallId Come(size_t position, int rank, const std::string& group,
                      const std::string& tag, uint64_t request = 0,
                      absl::Duration timeout = absl::Seconds(10)) {
    if (answers_.size() <= position) answers_.resize(position + 1);
    return groups_.Barrier(FenceOf(rank, request), CallerOf(rank), group, tag,
                           timeout, [this, position](const BarrierAnswer& a) {
                             EXPECT_FALSE(answers_[position].has_value());
                             answers_[position] = a;
                           });
  }
  bool Answered(size_t position) { return answers_[position].has_value(); }
  absl::Status StatusOf(size_t position) {
    return Answered(position) ? answers_[position]->status
                              : absl::UnknownError("no answer");
  }

  absl::StatusOr<GroupInfo> CreateGroup(const Fence& fence,
                                        const Caller& caller,
                                        const std::string& name,
                                        const std::vector<int>& ranks) {
    absl::StatusOr<GroupInfo> answer = absl::UnknownError("no answer");
    groups_.CreateGroup(
        fence, caller, name, ranks,
        [&](absl::StatusOr<GroupInfo> group) { answer = group; });
    return answer;
  }
  absl::StatusOr<std::vector<GroupInfo>> CreateMesh(
      const Fence& fence, const Caller& caller, const std::string& name,
      const std::vector<MeshAxis>& axes,
      const std::vector<std::vector<std::string>>& joined = {}) {
    absl::StatusOr<std::vector<GroupInfo>> answer =
        absl::UnknownError("no answer");
    groups_.CreateMesh(
        fence, caller, name, {axes, joined},
        [&](absl::StatusOr<std::vector<GroupInfo>> own) { answer = own; });
    return answer;
  }

  FakeClock clock_;
  MemoryStateStore state_;
  DirectWriter writer_{&state_};
  // Before the groups, whose destructor answers what still waits.
  std::vector<std::optional<BarrierAnswer>> answers_;
  Groups groups_;
};

TEST_F(GroupsTest, AGroupHasAnIdOfItsGeneration) {
  const auto group = CreateGroup(FenceOf(3), CallerOf(3), "odd", {3, 1});
  ASSERT_OK(group);
  EXPECT_THAT(group->ranks, ElementsAre(3, 1));
  EXPECT_EQ(group->communicator_id, "job/1/odd");
  ASSERT_OK(CreateGroup(FenceOf(1), CallerOf(1), "odd", {3, 1}));
  const auto later = CreateGroup(FenceOf(1, 0, 2), CallerOf(1), "odd", {1, 3});
  ASSERT_OK(later);
  EXPECT_EQ(later->communicator_id, "job/2/odd");
}

TEST_F(GroupsTest, MembersMustDeclareTheSameRanks) {
  ASSERT_OK(CreateGroup(FenceOf(0), CallerOf(0), "g", {0, 1}));
  EXPECT_THAT(
      CreateGroup(FenceOf(1), CallerOf(1), "g", {1, 0}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("[1, 0], but was declared with the ranks [0, 1]")));
}

TEST_F(GroupsTest, AGroupOfAllRanksIsNotAListOfThem) {
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<GroupInfo> world = absl::UnknownError("no answer");
    groups_.CreateGroupOfAll(
        FenceOf(i), "world",
        [&](const absl::StatusOr<GroupInfo>& group) { world = group; });
    ASSERT_OK(world);
    EXPECT_THAT(world->ranks, testing::IsEmpty());
  }
  ASSERT_OK_AND_ASSIGN(
      const GroupInfo listed,
      CreateGroup(FenceOf(2), CallerOf(2), "world", {0, 1, 2, 3}));
  EXPECT_THAT(listed.ranks, testing::IsEmpty()) << "the same group";
  EXPECT_THAT(CreateGroup(FenceOf(2), CallerOf(2), "world", {3, 2, 1, 0}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("but was declared with all ranks")));
  for (int rank = 0; rank < 4; ++rank) {
    Come(rank, rank, "world", "step");
    EXPECT_EQ(Answered(rank), rank == 3);
  }
}

TEST_F(GroupsTest, BadGroupsAreRefused) {
  const auto create = [&](const std::string& name,
                          const std::vector<int>& ranks) {
    return CreateGroup(FenceOf(0), CallerOf(0), name, ranks).status();
  };
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(create("g", {0, 4}), invalid("rank 4"));
  EXPECT_THAT(create("g", {0, -1}), invalid("rank -1"));
  EXPECT_THAT(create("g", {0, 1, 1}), invalid("twice"));
  EXPECT_THAT(create("g", {1, 2}), invalid("not in"));
  EXPECT_THAT(create("g", {}), invalid("not in"));
  EXPECT_THAT(create("", {0}), invalid("name"));
  EXPECT_THAT(create("a b", {0}), invalid("name"));
  EXPECT_THAT(create(std::string(129, 'g'), {0}), invalid("name"));
}

TEST_F(GroupsTest, AMeshGivesTheCallersGroupOfEachAxis) {
  const std::vector<MeshAxis> axes = {{"dp", 2}, {"tp", 2}};
  const auto groups = CreateMesh(FenceOf(3), CallerOf(3), "m", axes);
  ASSERT_OK(groups);
  ASSERT_EQ(groups->size(), 2);
  EXPECT_EQ((*groups)[0].name, "m/dp/1");
  EXPECT_THAT((*groups)[0].ranks, ElementsAre(1, 3));
  EXPECT_EQ((*groups)[1].communicator_id, "job/1/m/tp/1");
  EXPECT_THAT((*groups)[1].ranks, ElementsAre(2, 3));
  EXPECT_THAT(
      CreateMesh(FenceOf(0), CallerOf(0), "m", {{"dp", 4}}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("dp=2,tp=2")));
  EXPECT_THAT(CreateMesh(FenceOf(0), CallerOf(0), "n", {{"dp", 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4")));
}

TEST_F(GroupsTest, AMeshGivesTheCallersGroupOfJoinedAxes) {
  const std::vector<MeshAxis> axes = {{"pp", 2}, {"dp", 2}};
  const auto groups =
      CreateMesh(FenceOf(3), CallerOf(3), "m", axes, {{"dp", "pp"}});
  ASSERT_OK(groups);
  ASSERT_EQ(groups->size(), 3);
  EXPECT_THAT((*groups)[1].ranks, ElementsAre(2, 3));
  EXPECT_EQ((*groups)[2].communicator_id, "job/1/m/pp+dp/0");
  EXPECT_THAT((*groups)[2].ranks, ElementsAre(0, 1, 2, 3));
  // The same set of axes, in another order.
  EXPECT_OK(CreateMesh(FenceOf(0), CallerOf(0), "m", axes, {{"pp", "dp"}}));
  EXPECT_THAT(CreateMesh(FenceOf(0), CallerOf(0), "m", axes),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("was declared as pp=2,dp=2 with pp+dp")));
  for (int rank = 0; rank < 4; ++rank) Come(rank, rank, "m/pp+dp/0", "t");
  for (int call = 0; call < 4; ++call) EXPECT_OK(StatusOf(call));
}

TEST_F(GroupsTest, ABarrierOfAMeshGroupNeedsItsMembersOnly) {
  const std::vector<MeshAxis> axes = {{"dp", 2}, {"tp", 2}};
  ASSERT_OK(CreateMesh(FenceOf(1), CallerOf(1), "m", axes));
  Come(0, 1, "m/dp/1", "t");
  EXPECT_FALSE(Answered(0));
  Come(1, 3, "m/dp/1", "t");
  EXPECT_OK(StatusOf(0));
  EXPECT_OK(StatusOf(1));
  Come(2, 0, "m/dp/1", "t");
  EXPECT_THAT(StatusOf(2), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("rank 0")));
  Come(3, 0, "nothing", "t");
  EXPECT_THAT(StatusOf(3),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"nothing\"")));
}

TEST_F(GroupsTest, TheGroupCountIsLimited) {
  for (int i = 0; i < 12; ++i) {
    ASSERT_OK(CreateGroup(FenceOf(0), CallerOf(0), absl::StrCat("g", i), {0}));
  }
  EXPECT_THAT(
      CreateGroup(FenceOf(0), CallerOf(0), "more", {0}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_groups")));
}

TEST_F(GroupsTest, ACallWaitsAtABarrierForTheLimitAtMost) {
  Come(0, 0, "", "t", 1, absl::InfiniteDuration());
  clock_.Advance(GroupLimits().max_timeout - absl::Milliseconds(1));
  groups_.Tick(clock_.Now());
  EXPECT_FALSE(Answered(0));
  clock_.Advance(absl::Milliseconds(1));
  groups_.Tick(clock_.Now());
  ASSERT_TRUE(Answered(0));
  EXPECT_THAT(StatusOf(0),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
}

TEST_F(GroupsTest, ABarrierOpensWhenAllRanksCameAndItsTagIsFreeAgain) {
  for (int round = 0; round < 2; ++round) {
    answers_.clear();
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(Come(rank, rank, "", "t", 10 * round + rank + 1) == 0,
                rank == 3);
      EXPECT_EQ(Answered(0), rank == 3);
    }
    for (int rank = 0; rank < 4; ++rank) EXPECT_OK(StatusOf(rank));
  }
}

TEST_F(GroupsTest, TheDeadlineNamesTheMissingRanks) {
  Come(0, 0, "", "t");
  Come(1, 2, "", "t", 0, absl::Seconds(20));
  clock_.Advance(absl::Seconds(10));
  groups_.Tick(clock_.Now());
  EXPECT_THAT(StatusOf(0), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                    HasSubstr("2 of 4 ranks did not come")));
  EXPECT_THAT(StatusOf(0).message(), HasSubstr(": 1, 3"));
  EXPECT_THAT(answers_[0]->missing_ranks, ElementsAre(1, 3));
  EXPECT_EQ(answers_[0]->expected, 4);
  EXPECT_FALSE(Answered(1));
  clock_.Advance(absl::Seconds(10));
  groups_.Tick(clock_.Now());
  EXPECT_THAT(answers_[1]->missing_ranks, ElementsAre(0, 1, 3));
}

TEST_F(GroupsTest, ARepeatTakesThePlaceOfItsFirstTry) {
  Come(0, 0, "", "t", 5);
  Come(1, 0, "", "t", 5);
  EXPECT_THAT(StatusOf(0),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0")));
  for (int rank = 1; rank < 4; ++rank) Come(1 + rank, rank, "", "t");
  EXPECT_OK(StatusOf(1));
}

TEST_F(GroupsTest, ARepeatOfACompletedCallIsAnsweredAtOnce) {
  for (int rank = 0; rank < 4; ++rank) Come(rank, rank, "", "t", 5);
  EXPECT_EQ(Come(4, 2, "", "t", 5), 0);
  EXPECT_OK(StatusOf(4));
  Come(5, 2, "", "t", 6);
  EXPECT_FALSE(Answered(5));
}

TEST_F(GroupsTest, AWithdrawnCallIsNoLongerPresent) {
  const Groups::CallId call = Come(0, 0, "", "t");
  groups_.Cancel(call);
  EXPECT_THAT(StatusOf(0), StatusIs(absl::StatusCode::kCancelled, testing::_));
  for (int rank = 1; rank < 4; ++rank) Come(rank, rank, "", "t");
  EXPECT_FALSE(Answered(1));
  Come(4, 0, "", "t");
  EXPECT_OK(StatusOf(4));
}

TEST_F(GroupsTest, WaitingBarriersAreLimited) {
  Come(0, 0, "", "a");
  Come(1, 0, "", "b");
  Come(2, 0, "", "c");
  EXPECT_THAT(StatusOf(2), StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("max_barriers")));
  Come(3, 1, "", "b");
  EXPECT_FALSE(Answered(3));
  Come(4, 0, "", std::string(257, 't'));
  EXPECT_THAT(StatusOf(4), StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("max_tag_bytes")));
}

TEST_F(GroupsTest, TheEndOfTheGenerationAbortsWaitersAndLeavesNothing) {
  ASSERT_OK(CreateGroup(FenceOf(0), CallerOf(0), "g", {0}));
  Come(0, 0, "", "t");
  groups_.OnGenerationEnded("job", Generation(1),
                            absl::AbortedError("rank 2 is lost"));
  EXPECT_THAT(StatusOf(0), StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("rank 2 is lost")));
  EXPECT_EQ(groups_.scope_count(), 0);
  Come(1, 0, "", "t");
  EXPECT_THAT(StatusOf(1),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("has ended")));
  EXPECT_EQ(groups_.scope_count(), 0);
}

TEST_F(GroupsTest, ABarrierThatAMemberLeftCleanlyIsAnsweredAtOnce) {
  ASSERT_OK(CreateGroup(FenceOf(0), CallerOf(0), "with", {0, 2}));
  ASSERT_OK(CreateGroup(FenceOf(0), CallerOf(0), "without", {0, 1}));
  Come(0, 0, "with", "t");
  Come(1, 0, "without", "t");
  groups_.OnMemberLeft("job", Generation(1), 2);
  const auto names_rank_2 = StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("rank 2 has left"));
  EXPECT_THAT(StatusOf(0), names_rank_2);
  EXPECT_FALSE(Answered(1));
  Come(2, 1, "without", "t");
  EXPECT_OK(StatusOf(1));
  Come(3, 1, "", "later");
  EXPECT_THAT(StatusOf(3), names_rank_2);
}

TEST_F(GroupsTest, ARepeatOfACompletedCallIsAnsweredAlsoAfterAMemberLeft) {
  for (int rank = 0; rank < 4; ++rank) Come(rank, rank, "", "t", 50 + rank);
  groups_.OnMemberLeft("job", Generation(1), 3);
  Come(4, 0, "", "t", 50);
  EXPECT_OK(StatusOf(4));
}

TEST_F(GroupsTest, NewsOfALeaverBringsNoEndedGenerationBack) {
  groups_.OnGenerationEnded("job", Generation(1), absl::AbortedError("over"));
  groups_.OnMemberLeft("job", Generation(1), 2);
  EXPECT_EQ(groups_.scope_count(), 0);
}

TEST_F(GroupsTest, StoppingAnswersWaitingCalls) {
  std::optional<BarrierAnswer> answer;
  {
    Groups groups(GroupLimits(), &clock_, &writer_);
    groups.Barrier(FenceOf(0), CallerOf(0), "", "t", absl::Seconds(1),
                   [&](const BarrierAnswer& a) { answer = a; });
  }
  ASSERT_TRUE(answer.has_value());
  EXPECT_THAT(answer->status,
              StatusIs(absl::StatusCode::kUnavailable, testing::_));
}

}  // namespace
}  // namespace coxswain::server
