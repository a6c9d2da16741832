#include "server/membership/rank_assignment.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;

Member MakeMember(const std::string& node, int slot,
                  std::vector<std::string> topology = {}) {
  Member member;
  member.identity = {node, slot};
  member.topology = std::move(topology);
  return member;
}

std::vector<std::string> Order(const std::map<WorkerIdentity, int>& held,
                               std::vector<Member> members) {
  AssignRanks(held, &members);
  std::vector<std::string> names;
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(members[i].rank, static_cast<int>(i));
    names.push_back(members[i].identity.ToString());
  }
  return names;
}

TEST(AssignRanksTest, NodesCompareAsNumbersThenSlots) {
  EXPECT_THAT(Order({}, {MakeMember("host-10", 0), MakeMember("host-9", 11),
                         MakeMember("host-9", 2), MakeMember("host-1", 0)}),
              ElementsAre("host-1/0", "host-9/2", "host-9/11", "host-10/0"));
}

TEST(AssignRanksTest, TopologyKeysComeFirstAndCompareAsNumbers) {
  EXPECT_THAT(
      Order({}, {MakeMember("a", 0, {"rack10", "1"}),
                 MakeMember("b", 0, {"rack2", "10"}),
                 MakeMember("c", 0, {"rack2", "9"}), MakeMember("z", 0)}),
      ElementsAre("z/0", "c/0", "b/0", "a/0"));
}

TEST(AssignRanksTest, NumbersOfAnyLengthAndLeadingZerosAreOrdered) {
  EXPECT_THAT(Order({}, {MakeMember("n99999999999999999999999", 0),
                         MakeMember("n100000000000000000000000", 0),
                         MakeMember("n007", 0), MakeMember("n7", 0),
                         MakeMember("n", 0)}),
              ElementsAre("n/0", "n007/0", "n7/0", "n99999999999999999999999/0",
                          "n100000000000000000000000/0"));
}

TEST(AssignRanksTest, SurvivorsKeepTheirsAndNewcomersFillTheHoles) {
  EXPECT_THAT(Order({{{"b", 0}, 0}, {{"c", 0}, 2}},
                    {MakeMember("a", 0), MakeMember("b", 0), MakeMember("c", 0),
                     MakeMember("d", 0)}),
              ElementsAre("b/0", "a/0", "c/0", "d/0"));
}

TEST(AssignRanksTest, HeldRankBeyondTheWorldSizeIsReleased) {
  EXPECT_THAT(Order({{{"a", 0}, 5}, {{"b", 0}, 0}},
                    {MakeMember("a", 0), MakeMember("b", 0)}),
              ElementsAre("b/0", "a/0"));
}

TEST(AssignRanksTest, LocalRankIsThePlaceOnTheNode) {
  std::vector<Member> members = {MakeMember("a", 4), MakeMember("b", 0),
                                 MakeMember("a", 2)};
  AssignRanks({}, &members);
  EXPECT_EQ(members[0].local_rank, 0);
  EXPECT_EQ(members[1].local_rank, 1);
  EXPECT_EQ(members[2].local_rank, 0);
}

std::vector<std::string> Coordinates(const std::string& mesh, int count) {
  std::vector<Member> members;
  for (int slot = 0; slot < count; ++slot) {
    members.push_back(MakeMember("a", slot));
  }
  AssignRanks({}, &members);
  AssignCoordinates(mesh, &members);
  std::vector<std::string> coordinates;
  for (const Member& member : members) {
    coordinates.push_back(member.coordinates);
  }
  return coordinates;
}

TEST(AssignCoordinatesTest, TheFreeAxisTakesTheRanksThatThereAre) {
  EXPECT_THAT(Coordinates("dp=*,shard=2", 4),
              ElementsAre("dp 0, shard 0", "dp 0, shard 1", "dp 1, shard 0",
                          "dp 1, shard 1"));
}

TEST(AssignCoordinatesTest, WithoutAMeshThatFitsThereAreNone) {
  EXPECT_THAT(Coordinates("", 2), ElementsAre("", ""));
  EXPECT_THAT(Coordinates("dp=3", 2), ElementsAre("", ""));
  EXPECT_THAT(Coordinates("nothing", 2), ElementsAre("", ""));
}

TEST(MemberTest, ItsPlaceBeginsWithItsCoordinates) {
  Member member = MakeMember("host-b", 1);
  member.rank = 5;
  EXPECT_EQ(member.Place(), "host-b/1");
  member.coordinates = "pp 1, dp 0, tp 1";
  EXPECT_EQ(member.Place(), "pp 1, dp 0, tp 1; host-b/1");
  EXPECT_THAT(member.ToString(),
              testing::StartsWith("rank 5 (pp 1, dp 0, tp 1; host-b/1"));
}

}  // namespace
}  // namespace coxswain::server
