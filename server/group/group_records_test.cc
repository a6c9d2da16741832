#include "server/group/group_records.h"

#include <limits>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "proto/state.pb.h"
#include "server/options/options.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;

TEST(GroupRecordsTest, RanksAndAxesAreReadAsTheyWereWritten) {
  ASSERT_OK_AND_ASSIGN(const std::vector<int> ranks,
                       DecodeRanks(EncodeRanks({5, 0, kMaxWorldSize - 1})));
  EXPECT_THAT(ranks, ElementsAre(5, 0, kMaxWorldSize - 1));
  ASSERT_OK_AND_ASSIGN(const std::vector<int> all, DecodeRanks(""));
  EXPECT_THAT(all, IsEmpty());
  ASSERT_OK_AND_ASSIGN(
      const DeclaredMesh mesh,
      DeclaredMesh::Create({{{"data", 128}, {"model", 64}, {"x", 1}},
                            {{"data", "x"}, {"data", "model", "x"}}},
                           128 * 64));
  ASSERT_OK_AND_ASSIGN(const auto read, DecodeMesh(EncodeMesh(mesh)));
  EXPECT_EQ(read, mesh);
}

TEST(GroupRecordsTest, NamesOfAxesAreAnyBytes) {
  ASSERT_OK_AND_ASSIGN(
      const DeclaredMesh mesh,
      DeclaredMesh::Create({{{"\xff\xc3(", 2}, {std::string("\0", 1), 2}}, {}},
                           4));
  ASSERT_OK_AND_ASSIGN(const auto read, DecodeMesh(EncodeMesh(mesh)));
  EXPECT_EQ(read, mesh);
}

TEST(GroupRecordsTest, ABarrierIsReadAsItWasWrittenOrNotAtAll) {
  const std::vector<BarrierRequest> calls = {{Incarnation(~uint64_t{0}), 7},
                                             {Incarnation(1), ~uint64_t{0}}};
  const std::string record = EncodeRequests(calls);
  ASSERT_OK_AND_ASSIGN(const auto read, DecodeRequests(record));
  EXPECT_EQ(read, calls);
  ASSERT_OK_AND_ASSIGN(const auto none, DecodeRequests(EncodeRequests({})));
  EXPECT_THAT(none, IsEmpty());
  for (size_t size = 1; size < record.size(); ++size) {
    EXPECT_THAT(DecodeRequests(record.substr(0, size)),
                StatusIs(kDataLoss, testing::_))
        << size;
  }
  EXPECT_EQ(DecodeBarrierRecord(BarrierRecord(~uint64_t{0})).value_or(0),
            ~uint64_t{0});
  EXPECT_THAT(DecodeBarrierRecord("b"), StatusIs(kDataLoss, testing::_));
}

// A group and a mesh are made of these numbers: of their size, or divided by
// them.
TEST(GroupRecordsTest, RanksThatCannotBeAreRefused) {
  for (const std::vector<int>& ranks :
       {std::vector<int>{-1}, std::vector<int>{0, 3, 0},
        std::vector<int>{kMaxWorldSize}}) {
    EXPECT_THAT(DecodeRanks(EncodeRanks(ranks)),
                StatusIs(kDataLoss, testing::_));
  }
}

TEST(GroupRecordsTest, AMeshThatCannotBeIsRefused) {
  constexpr int kHuge = std::numeric_limits<int>::max();
  const auto record = [](const std::vector<MeshAxis>& axes,
                         const std::vector<std::vector<int>>& joined = {}) {
    state::v1::Mesh mesh;
    for (const MeshAxis& axis : axes) {
      mesh.add_axes()->set_name(axis.name);
      mesh.mutable_axes()->rbegin()->set_size(axis.size);
    }
    for (const std::vector<int>& each : joined) {
      mesh.add_joined()->mutable_axes()->Assign(each.begin(), each.end());
    }
    return mesh.SerializeAsString();
  };
  std::vector<MeshAxis> many;
  for (int i = 0; i < 100; ++i) many.push_back({std::to_string(i), 1});
  many.push_back({"data", kMaxWorldSize / 2});
  for (const std::vector<MeshAxis>& axes :
       {std::vector<MeshAxis>{}, std::vector<MeshAxis>{{"a", 0}},
        std::vector<MeshAxis>{{"a", 2}, {"b", -1}},
        std::vector<MeshAxis>{{"a", 2}, {"a", 2}},
        std::vector<MeshAxis>{{"a", kHuge}, {"b", kHuge}, {"c", kHuge}},
        many}) {
    EXPECT_THAT(DecodeMesh(record(axes)), StatusIs(kDataLoss, testing::_));
  }
  const std::vector<MeshAxis> pair = {{"a", 2}, {"b", 2}};
  EXPECT_OK(DecodeMesh(record(pair, {{0, 1}})));
  for (const std::vector<std::vector<int>>& joined :
       {std::vector<std::vector<int>>{{}}, std::vector<std::vector<int>>{{0}},
        std::vector<std::vector<int>>{{0, 2}},
        std::vector<std::vector<int>>{{-1, 0}},
        std::vector<std::vector<int>>{{0, 0}},
        std::vector<std::vector<int>>{{0, 1}, {0, 1}}}) {
    EXPECT_THAT(DecodeMesh(record(pair, joined)),
                StatusIs(kDataLoss, testing::_));
  }
}

}  // namespace
}  // namespace coxswain::server
