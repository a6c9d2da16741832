// What one mesh has saved, ranks of any other load bit by bit.

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/checkpoint/pieces/piece_job.h"

namespace coxswain {
namespace {

class AnyMeshTest : public PieceJobTest {};

TEST_F(AnyMeshTest, FourRanksSaveAndOneTwoThreeOrEightLoad) {
  const ShardedModel model(301);
  const std::string id = Save(model, {1, 4, 1}, 40);
  for (const int size : {1, 2, 3, 8}) ExpectLoads(id, model, {1, size, 1});
}

TEST_F(AnyMeshTest, TheBusiestRankUploadsItsShareAndLittleMore) {
  const ShardedModel model(301);
  for (const int size : {2, 4, 8}) {
    const std::vector<int64_t> sizes = Sizes(Save(model, {1, size, 1}, size));
    const auto total = static_cast<double>(
        std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    const auto most =
        static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
    EXPECT_LE(most, (1.0 / size + 0.05) * total) << size;
    // And all together no more than one rank alone would.
    EXPECT_LE(total, 1.05 * model.Cut({}, 0).total()) << size;
  }
}

TEST_F(AnyMeshTest, OnlyTheLowestRankUploadsWhatSeveralHave) {
  const ShardedModel model(101);
  const std::string id = Save(model, {2, 2, 1}, 10);
  const std::vector<int64_t> sizes = Sizes(id);
  ASSERT_EQ(sizes.size(), 4u);
  // The second replica has nothing of its own.
  EXPECT_LT(sizes[2], 200);
  EXPECT_LT(sizes[3], 200);
  ASSERT_OK_AND_ASSIGN(PieceCheckpoint saved,
                       PieceCheckpoint::Open(client(), id));
  EXPECT_EQ(saved.description().metadata.at("pieces"),
            absl::StrCat(saved.index().pieces().size()));
  // 7 parameters with 3 sharded kinds, of which 1 is a scalar and 1 is empty:
  // each in 2 slices; and 7 counts of steps that all have.
  EXPECT_EQ(saved.index().pieces().size(), 7u * 3 * 2 + 7 - 3);
  ExpectLoads(id, model, {1, 3, 1});
}

TEST_F(AnyMeshTest, ARankReadsWhatItIsToHaveAndTheTables) {
  const ShardedModel model(601);
  const std::string id = Save(model, {1, 4, 1}, 40);
  const std::vector<int64_t> sizes = Sizes(id);
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  for (const int size : {4, 8}) {
    RankPieces wanted = model.Cut({1, size, 1}, 1);
    ASSERT_OK_AND_ASSIGN(PieceCheckpoint saved,
                         PieceCheckpoint::Open(client(), id));
    ASSERT_OK(saved.Load(wanted.memory()));
    // Blocks at both ends of each piece, and at the start of each part.
    const int64_t blocks =
        static_cast<int64_t>(2 * wanted.memory().size() + sizes.size());
    EXPECT_LE(saved.bytes_read(), wanted.total() + blocks * kPieceBlockBytes)
        << total;
    EXPECT_LT(saved.bytes_read(), total / 2);
  }
}

TEST_F(AnyMeshTest, EachRanksOwnBytesComeBack) {
  const std::string id = Save(ShardedModel(50), {1, 3, 1}, 1);
  ASSERT_OK_AND_ASSIGN(PieceCheckpoint saved,
                       PieceCheckpoint::Open(client(), id));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(saved.LoadState(rank).value_or("unreadable"),
              absl::StrCat("state of ", rank));
  }
  EXPECT_THAT(saved.LoadState(3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("ranks 0 to 2, not of rank 3")));
}

// All pairs of twelve random meshes of at most eight ranks.
TEST_F(AnyMeshTest, AnyOfTwelveMeshesLoadsWhatAnyHasSaved) {
  std::mt19937 engine(20261129);
  std::vector<TestMesh> meshes;
  while (meshes.size() < 12) {
    const auto roll = [&](unsigned most) {
      return static_cast<int>(engine() % most) + 1;
    };
    const TestMesh mesh{roll(2), roll(5), roll(4)};
    if (mesh.size() <= 8) meshes.push_back(mesh);
  }
  const ShardedModel model(37);
  std::vector<std::string> ids;
  for (size_t i = 0; i < meshes.size(); ++i) {
    ids.push_back(Save(model, meshes[i], static_cast<int64_t>(i)));
  }
  for (size_t from = 0; from < meshes.size(); ++from) {
    SCOPED_TRACE(absl::StrCat("saved by ", meshes[from].text()));
    for (const TestMesh& to : meshes) ExpectLoads(ids[from], model, to);
  }
}

}  // namespace
}  // namespace coxswain
