#include "base/mesh.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_matchers.h"

namespace coxswain::mesh_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

Mesh Fitted(absl::string_view text, int world_size) {
  const auto mesh = Mesh::Parse(text);
  EXPECT_OK(mesh);
  const auto fitted = mesh->Fit(world_size);
  EXPECT_OK(fitted);
  return fitted.value_or(Mesh());
}

auto Invalid(absl::string_view text) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  HasSubstr(std::string(text)));
}

TEST(MeshTest, TheTextIsReadAndWritten) {
  for (const char* const text :
       {"dp=4", "pp=2,dp=*,tp=2", "shard=*", "pp=1,dp=2,shard=3,tp=4"}) {
    ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse(text));
    EXPECT_EQ(mesh.ToString(), text);
  }
  ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Parse("pp=2,dp=*,tp=3"));
  EXPECT_TRUE(mesh.has_free_axis());
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.extent("pp"), 2);
  EXPECT_EQ(mesh.extent("dp"), 0);
  EXPECT_EQ(mesh.extent("shard"), 1);
}

TEST(MeshTest, WhatIsNoMeshIsRefusedWithWhatIsWrong) {
  EXPECT_THAT(Mesh::Parse(""), Invalid("has an axis ''"));
  EXPECT_THAT(Mesh::Parse("dp=2,"), Invalid("has an axis ''"));
  EXPECT_THAT(Mesh::Parse("dq=2"),
              Invalid("the mesh 'dq=2' has an axis 'dq': the axes are pp, dp, "
                      "shard, tp; did you mean 'dp'?"));
  EXPECT_THAT(Mesh::Parse("dp"), Invalid("has dp=''"));
  for (const char* const size :
       {"0", "-1", "two", "**", "99999999999", "2=2"}) {
    EXPECT_THAT(Mesh::Parse(absl::StrCat("dp=", size)),
                Invalid(absl::StrCat("has dp='", size, "': write a number")));
  }
  EXPECT_THAT(Mesh::Parse("dp=2,dp=2"), Invalid("has dp twice"));
  EXPECT_THAT(Mesh::Parse("pp=1,dp=1,shard=1,tp=1,tp=1,tp=1"),
              Invalid("has tp twice"));
  EXPECT_THAT(Mesh::Parse("tp=2,dp=2"),
              Invalid("has dp after tp: axes come in the order pp, dp, shard"));
  EXPECT_THAT(Mesh::Parse("pp=*,dp=*"), Invalid("has 2 free axes (*)"));
  EXPECT_THAT(Mesh::Parse("pp=65536,dp=65536"),
              Invalid("more ranks than any job"));
  // A peer's text is shown in part, and on one line.
  const auto endless = Mesh::Parse(absl::StrCat("x\n", std::string(9999, 'y')));
  EXPECT_LT(endless.status().message().size(), 400);
  EXPECT_THAT(std::string(endless.status().message()),
              testing::Not(HasSubstr("\n")));
}

TEST(MeshTest, AFreeAxisTakesWhatTheWorkersMake) {
  EXPECT_EQ(Fitted("pp=2,dp=*,tp=2", 12).ToString(), "pp=2,dp=3,tp=2");
  EXPECT_EQ(Fitted("dp=*", 1).ToString(), "dp=1");
  EXPECT_EQ(Fitted("dp=3", 3).size(), 3);
  ASSERT_OK_AND_ASSIGN(const Mesh free, Mesh::Parse("pp=2,dp=*,tp=4"));
  EXPECT_THAT(free.Fit(6), Invalid("the mesh pp=2,dp=*,tp=4 does not fit 6 "
                                   "workers: a multiple of 8 is needed"));
  EXPECT_THAT(free.Fit(0), Invalid("0 workers"));
  ASSERT_OK_AND_ASSIGN(const Mesh fixed, Mesh::Parse("dp=4"));
  EXPECT_THAT(fixed.Fit(8), Invalid("does not fit 8 workers: 4 are needed"));
}

TEST(MeshTest, NoMeshHasNoAxes) {
  EXPECT_TRUE(Mesh().empty());
  EXPECT_EQ(Mesh().size(), 1);
  EXPECT_EQ(Mesh().ToString(), "");
  EXPECT_EQ(Mesh().Describe(7), "");
  EXPECT_EQ(Mesh().extent("dp"), 1);
}

TEST(MeshTest, TheLastAxisVariesFastest) {
  const Mesh mesh = Fitted("pp=2,dp=2,tp=2", 8);
  EXPECT_EQ(mesh.Describe(5), "pp 1, dp 0, tp 1");
  EXPECT_THAT(mesh.CoordinatesOf(6), ElementsAre(1, 1, 0));
  EXPECT_EQ(mesh.RankOf({1, 1, 0}), 6);
  EXPECT_THAT(mesh.GroupOf(5, mesh.AxesOf({"tp"})), ElementsAre(4, 5));
  EXPECT_THAT(mesh.GroupOf(5, mesh.AxesOf({"dp"})), ElementsAre(5, 7));
  EXPECT_THAT(mesh.GroupOf(5, mesh.AxesOf({"pp"})), ElementsAre(1, 5));
  EXPECT_THAT(mesh.GroupOf(5, mesh.AxesOf({"tp", "pp"})),
              ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(mesh.GroupOf(5, mesh.AxesOf({"shard"})), ElementsAre(5));
  EXPECT_EQ(mesh.NameOf(mesh.AxesOf({"tp", "pp"})), "pp+tp");
  EXPECT_THAT(mesh.AxesOf({"shard", "data"}), IsEmpty());
}

TEST(MeshTest, TheMiddleAxisOfThreeIsStrided) {
  const Mesh mesh = Fitted("pp=2,dp=3,tp=4", 24);
  const auto middle = mesh.GroupsAlong(mesh.AxesOf({"dp"}));
  ASSERT_EQ(middle.size(), 8);
  EXPECT_THAT(middle[1], ElementsAre(1, 5, 9));
  EXPECT_THAT(middle[4], ElementsAre(12, 16, 20));
}

TEST(MeshTest, AxesMayHaveAnyNamesWhereTheyAreNoJobs) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                       Mesh::Create({{"nodes", 2}, {"slots", 3}}));
  EXPECT_EQ(mesh.Describe(4), "nodes 1, slots 1");
  EXPECT_THAT(Mesh::Create({}), Invalid("no axes"));
  EXPECT_THAT(Mesh::Create({{"a", -1}}), Invalid("axis 'a' has size -1"));
  EXPECT_THAT(Mesh::Create({{"a", 1}, {"a", 1}}), Invalid("two axes named"));
}

// A mesh of up to five axes, and some of them.
struct RandomCase {
  explicit RandomCase(uint64_t seed) : random(seed, 0) {
    std::vector<MeshAxis> made;
    for (int i = Below(4); i >= 0; --i) {
      made.push_back({absl::StrCat("axis", i), 1 + Below(4)});
    }
    mesh = *Mesh::Create(made);
    for (size_t i = 0; i < made.size(); ++i) {
      if (Below(2) == 1) axes.push_back(static_cast<int>(i));
    }
  }

  int Below(int bound) {
    return static_cast<int>(random.Bits(drawn++) % bound);
  }

  CounterRandom random;
  uint64_t drawn = 0;
  Mesh mesh;
  MeshAxes axes;
};

TEST(MeshTest, CoordinatesAndRanksAreOneToOne) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Mesh mesh = RandomCase(seed).mesh;
    std::set<std::vector<int>> seen;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int> coordinates = mesh.CoordinatesOf(rank);
      EXPECT_EQ(mesh.RankOf(coordinates), rank) << mesh.ToString();
      EXPECT_EQ(mesh.CoordinateOf(rank, "of none"), 0);
      for (size_t i = 0; i < coordinates.size(); ++i) {
        EXPECT_EQ(mesh.CoordinateOf(rank, mesh.axes()[i].name), coordinates[i]);
        EXPECT_LT(coordinates[i], mesh.axes()[i].size);
      }
      // Ascending ranks have ascending coordinates.
      if (!seen.empty()) {
        EXPECT_LT(*seen.rbegin(), coordinates);
      }
      EXPECT_TRUE(seen.insert(coordinates).second);
    }
  }
}

TEST(MeshTest, GroupsDivideTheRanksByTheirOtherCoordinates) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RandomCase random(seed);
    const Mesh& mesh = random.mesh;
    SCOPED_TRACE(
        absl::StrCat(mesh.ToString(), " along ", mesh.NameOf(random.axes)));
    const auto groups = mesh.GroupsAlong(random.axes);
    EXPECT_EQ(groups.size() * mesh.GroupSize(random.axes), mesh.size());
    // What the definition says, slowly.
    std::map<std::vector<int>, std::vector<int>> by_rest;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      std::vector<int> rest = mesh.CoordinatesOf(rank);
      for (const int axis : random.axes) rest[axis] = 0;
      by_rest[rest].push_back(rank);
    }
    std::vector<std::vector<int>> expected;
    for (const auto& [rest, ranks] : by_rest) expected.push_back(ranks);
    EXPECT_EQ(groups, expected);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const int index = mesh.GroupIndexOf(rank, random.axes);
      EXPECT_EQ(mesh.GroupOf(rank, random.axes), groups[index]);
      EXPECT_EQ(std::count(groups[index].begin(), groups[index].end(), rank),
                1);
    }
  }
}

TEST(JobMeshTest, EveryNumberOfWorkersMustFit) {
  EXPECT_OK(ParseJobMesh("dp=2,shard=2", 4, 4));
  EXPECT_OK(ParseJobMesh("dp=*,shard=2", 4, 4));
  EXPECT_OK(ParseJobMesh("pp=1,dp=*", 2, 5));
  EXPECT_THAT(ParseJobMesh("dp=3", 4, 4), Invalid("3 are needed"));
  EXPECT_THAT(ParseJobMesh("dp=*,shard=2", 2, 4),
              Invalid("fits only multiples of 2 workers, and the job may run "
                      "with 2 to 4"));
  EXPECT_THAT(ParseJobMesh("dp=4", 2, 4),
              Invalid("fits only 4 workers, and the job may run with 2 to 4: "
                      "let it need all 4 workers, or give"));
}

TEST(JobMeshTest, PartsOfAModelNeedAPipeline) {
  const auto check = [](const char* text, bool has_pipeline = false) {
    return CheckTrainable(*Mesh::Parse(text), has_pipeline);
  };
  EXPECT_OK(check("pp=1,dp=*"));
  EXPECT_OK(check("shard=*,tp=1"));
  EXPECT_OK(check("pp=2,dp=2,shard=2,tp=2", /*has_pipeline=*/true));
  EXPECT_THAT(check("pp=2,dp=*"),
              Invalid("the mesh pp=2,dp=* has pp=2, and the plan has no "
                      "pipeline to run the ranks' parts of the model: set the "
                      "plan's pipeline, as in pipeline=1f1b, or leave pp out"));
  EXPECT_THAT(check("dp=*,tp=2"), Invalid("has tp=2"));
}

TEST(DataPlaceTest, RanksOfOneReplicaReadTheSameData) {
  const Mesh mesh = Fitted("pp=2,dp=2,shard=2,tp=2", 16);
  for (int rank = 0; rank < 16; ++rank) {
    const std::vector<int> at = mesh.CoordinatesOf(rank);
    const DataPlace place = DataPlaceOf(mesh, rank, 16);
    EXPECT_EQ(place.index, 2 * at[1] + at[2]) << rank;
    EXPECT_EQ(place.count, 4);
    // As it is numbered among those that average gradients with it.
    EXPECT_EQ(mesh.GroupOf(rank, mesh.AxesOf({"dp", "shard"}))[place.index],
              rank);
  }
}

TEST(DataPlaceTest, EachRankHasItsOwnWithoutStages) {
  for (const Mesh& mesh : {Mesh(), Fitted("dp=2,shard=2", 4)}) {
    EXPECT_EQ(DataPlaceOf(mesh, 3, 4).index, 3);
    EXPECT_EQ(DataPlaceOf(mesh, 3, 4).count, 4);
  }
}

TEST(JobMeshTest, CoordinatesComeBeforeAPlace) {
  EXPECT_EQ(WithCoordinates("pp 1, dp 0", "host-b/1"), "pp 1, dp 0; host-b/1");
  EXPECT_EQ(WithCoordinates("", "host-b/1"), "host-b/1");
  EXPECT_EQ(InParentheses("dp 0"), " (dp 0)");
  EXPECT_EQ(InParentheses(""), "");
}

TEST(PlacementHintTest, GroupsThatSpanHostsAreNamed) {
  const Mesh mesh = Fitted("dp=4,shard=2", 8);
  EXPECT_EQ(PlacementHint(mesh, {"a", "a", "a", "a", "b", "b", "b", "b"}), "");
  EXPECT_EQ(PlacementHint(mesh, {"a", "a", "a", "b", "b", "b", "b", "b"}),
            "shard=2 spans hosts: 1 of 4 groups, the first of ranks 2, 3 on a, "
            "b; start a multiple of 2 workers on each host, so that shard "
            "stays within one");
}

TEST(PlacementHintTest, GroupsApartAreThoseOnSeveralHosts) {
  const Mesh mesh = Fitted("dp=2,tp=3", 6);
  const std::vector<std::string> hosts = {"a", "a", "b", "b", "b", "b"};
  EXPECT_THAT(GroupsApart(mesh, {1}, hosts), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_EQ(DescribeApart(mesh, {1}, hosts),
            "tp=3 spans hosts: 1 of 2 groups, the first of ranks 0, 1, 2 on a, "
            "b");
  EXPECT_THAT(GroupsApart(mesh, {0}, hosts).size(), 2);
  const std::vector<std::string> one(6, "a");
  EXPECT_THAT(GroupsApart(mesh, {1}, one), IsEmpty());
  EXPECT_EQ(DescribeApart(mesh, {1}, one), "");
}

TEST(PlacementHintTest, WhatNoOtherStartWouldMendIsNoHint) {
  // All sharding goes over hosts, or one worker is on each.
  EXPECT_EQ(PlacementHint(Fitted("shard=4", 4), {"a", "a", "b", "b"}), "");
  EXPECT_EQ(PlacementHint(Fitted("dp=2,shard=2", 4), {"a", "b", "c", "d"}), "");
  EXPECT_EQ(PlacementHint(Fitted("dp=4", 4), {"a", "b", "b", "c"}), "");
  EXPECT_EQ(PlacementHint(Mesh(), {"a"}), "");
}

TEST(PlacementHintTest, TensorGroupsComeFirst) {
  const Mesh mesh = Fitted("shard=2,tp=2", 4);
  EXPECT_THAT(PlacementHint(mesh, {"a", "b", "b", "b"}),
              AllOf(HasSubstr("tp=2 spans hosts: 1 of 2 groups"),
                    HasSubstr("ranks 0, 1 on a, b")));
  // Whole tp groups on each host, but shard groups of four in a row on none.
  EXPECT_EQ(PlacementHint(mesh, {"a", "a", "b", "b"}), "");
}

TEST(PlacementHintTest, AlongAxesItIsOfThoseAlone) {
  const Mesh mesh = Fitted("shard=2,tp=2", 4);
  // The groups along both are one, of four.
  EXPECT_EQ(PlacementHint(mesh, {0, 1}, {"a", "b", "b", "b"}), "");
  EXPECT_THAT(PlacementHint(mesh, {1}, {"a", "b", "b", "b"}),
              StartsWith("tp=2 spans hosts"));
  EXPECT_EQ(PlacementHint(mesh, {1}, {"a", "a", "b", "b"}), "");
  EXPECT_EQ(PlacementHint(mesh, {}, {"a", "b", "b", "b"}), "");
}

}  // namespace
}  // namespace coxswain::mesh_test
