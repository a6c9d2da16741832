#include "server/group/declared_mesh.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DeclaredMeshTest, GroupsGoAlongEachAxisThenAlongJoinedOnes) {
  ASSERT_OK_AND_ASSIGN(
      const DeclaredMesh declared,
      DeclaredMesh::Create({{{"nodes", 2}, {"slots", 4}}, {{"slots", "nodes"}}},
                           8));
  EXPECT_THAT(declared.Along(),
              ElementsAre(MeshAxes{0}, MeshAxes{1}, MeshAxes{0, 1}));
  EXPECT_EQ(declared.ToString(), "nodes=2,slots=4 with nodes+slots");
}

TEST(DeclaredMeshTest, SizesMustMultiplyToTheWorldSize) {
  constexpr int kLarge = 1 << 30;
  const auto create = [](std::vector<MeshAxis> axes, int world_size) {
    return DeclaredMesh::Create({std::move(axes), {}}, world_size).status();
  };
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_OK(create({{"dp", 2}, {"tp", 4}}, 8));
  EXPECT_THAT(create({{"dp", 2}, {"tp", 4}}, 6),
              invalid("dp=2,tp=4 does not fit 6 workers: 8 are needed"));
  EXPECT_THAT(create({{"dp", kLarge}, {"tp", kLarge}, {"x", kLarge}}, 4),
              invalid("more ranks than any job"));
  EXPECT_THAT(create({{"dp", 0}}, 4), invalid("size 0"));
  EXPECT_THAT(create({{"dp", -2}, {"tp", -2}}, 4), invalid("size -2"));
  EXPECT_THAT(create({{"dp", 2}, {"dp", 2}}, 4), invalid("two axes"));
  EXPECT_THAT(create({}, 1), invalid("no axes"));
}

TEST(DeclaredMeshTest, JoinedAxesAreSeveralOfTheMesh) {
  const auto join = [](std::vector<std::vector<std::string>> joined) {
    return DeclaredMesh::Create({{{"dp", 2}, {"tp", 2}}, std::move(joined)}, 4)
        .status();
  };
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_OK(join({{"dp", "tp"}}));
  EXPECT_THAT(join({{"dp"}}), invalid("the joined axes [dp] are not two"));
  EXPECT_THAT(join({{}}), invalid("[]"));
  EXPECT_THAT(join({{"dp", "dp"}}), invalid("[dp, dp]"));
  EXPECT_THAT(join({{"dp", "pp"}}), invalid("of the mesh dp=2,tp=2"));
  EXPECT_THAT(join({{"dp", "tp"}, {"tp", "dp"}}), invalid("dp+tp are joined"));
}

}  // namespace
}  // namespace coxswain::server
