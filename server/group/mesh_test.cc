#include "server/group/mesh.h"

#include <vector>

#include "base/status_matchers.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(MeshTest, TwoByTwoHasRowsAndColumns) {
  const std::vector<MeshGroup> groups = MeshGroups({{"dp", 2}, {"tp", 2}});
  ASSERT_EQ(groups.size(), 4);
  EXPECT_THAT(groups[0].ranks, ElementsAre(0, 2));
  EXPECT_THAT(groups[1].ranks, ElementsAre(1, 3));
  EXPECT_THAT(groups[2].ranks, ElementsAre(0, 1));
  EXPECT_THAT(groups[3].ranks, ElementsAre(2, 3));
  EXPECT_EQ(groups[3].axis, 1);
  EXPECT_EQ(groups[3].index, 1);
}

TEST(MeshTest, TheMiddleAxisOfThreeIsStrided) {
  const std::vector<MeshAxis> axes = {{"dp", 2}, {"pp", 3}, {"tp", 4}};
  std::vector<std::vector<int>> middle;
  for (const MeshGroup& group : MeshGroups(axes)) {
    if (group.axis == 1) middle.push_back(group.ranks);
  }
  ASSERT_EQ(middle.size(), 8);
  EXPECT_THAT(middle[1], ElementsAre(1, 5, 9));
  EXPECT_THAT(middle[4], ElementsAre(12, 16, 20));
}

TEST(MeshTest, EveryRankIsInTheGroupOfItsIndexOncePerAxis) {
  const std::vector<MeshAxis> axes = {{"a", 3}, {"b", 1}, {"c", 2}, {"d", 2}};
  std::vector<std::vector<int>> seen(axes.size(), std::vector<int>(12, 0));
  for (const MeshGroup& group : MeshGroups(axes)) {
    EXPECT_EQ(group.ranks.size(), axes[group.axis].size);
    for (const int rank : group.ranks) {
      ++seen[group.axis][rank];
      EXPECT_EQ(MeshGroupIndex(axes, group.axis, rank), group.index);
      const MeshGroup own = MeshGroupOf(axes, group.axis, rank);
      EXPECT_EQ(own.ranks, group.ranks);
      EXPECT_EQ(own.index, group.index);
    }
  }
  for (const std::vector<int>& axis : seen) EXPECT_THAT(axis, testing::Each(1));
}

TEST(MeshTest, SizesMustMultiplyToTheWorldSize) {
  EXPECT_OK(ValidateMesh({{"dp", 2}, {"tp", 4}}, 8));
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(ValidateMesh({{"dp", 2}, {"tp", 4}}, 6),
              invalid("dp=2,tp=4 does not fit the world size of 6"));
  EXPECT_THAT(ValidateMesh({{"dp", 2}}, 4), invalid("world size of 4"));
  EXPECT_THAT(
      ValidateMesh({{"dp", 1 << 30}, {"tp", 1 << 30}, {"x", 1 << 30}}, 4),
      invalid("world size of 4"));
  EXPECT_THAT(ValidateMesh({{"dp", 0}}, 4), invalid("size 0"));
  EXPECT_THAT(ValidateMesh({{"dp", -2}, {"tp", -2}}, 4), invalid("size -2"));
  EXPECT_THAT(ValidateMesh({{"dp", 2}, {"dp", 2}}, 4), invalid("two axes"));
  EXPECT_THAT(ValidateMesh({}, 1), invalid("no axes"));
}

}  // namespace
}  // namespace coxswain::server
