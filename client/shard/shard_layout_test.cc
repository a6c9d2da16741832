#include "client/shard/shard_layout.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/reduce/bucket_layout.h"
#include "client/shard/piece_index.h"
#include "client/shard/shard_layout_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ParameterSpec Parameter(const std::string& name, std::vector<int64_t> shape,
                        DType dtype = DType::kFloat32) {
  ParameterSpec parameter;
  parameter.name = name;
  parameter.shape = std::move(shape);
  parameter.dtype = dtype;
  return parameter;
}

TEST(ShardLayoutTest, SlicesAreWholeCacheLinesAndTheLastOnesMayBeShort) {
  // 100 floats on 3 ranks: 7 lines of 16, of which each slice has 3.
  const ShardLayout layout = LayoutOf({Parameter("a", {100})}, 3);
  EXPECT_EQ(layout.slices(0).each, 48);
  EXPECT_EQ(layout.slices(0).padded(), 144);
  EXPECT_EQ(layout.slice(0, 0).count, 48);
  EXPECT_EQ(layout.slice(0, 1).begin, 48);
  EXPECT_EQ(layout.slice(0, 2).begin, 96);
  EXPECT_EQ(layout.slice(0, 2).count, 4);
  // 8 ranks have 16 each, so the last one has nothing.
  const ShardLayout more = LayoutOf({Parameter("a", {100})}, 8);
  EXPECT_EQ(more.slice(0, 6).count, 4);
  EXPECT_EQ(more.slice(0, 7).count, 0);
  EXPECT_TRUE(more.parts(0, 7).empty());
}

TEST(ShardLayoutTest, ASliceHasPartsOfItsParameters) {
  // In reversed order: c, then b without elements, then a.
  const ShardLayout layout = LayoutOf(
      {Parameter("a", {40}), Parameter("b", {0, 3}), Parameter("c", {5, 2})},
      2);
  ASSERT_EQ(layout.slices(0).each, 32);
  std::vector<std::string> texts;
  for (int rank = 0; rank < 2; ++rank) {
    for (const SlicePart& part : layout.parts(0, rank)) {
      texts.push_back(absl::StrCat(part.parameter, ":", part.parameter_begin,
                                   ">", part.slice_begin, "x", part.count));
    }
  }
  EXPECT_THAT(texts, ElementsAre("2:0>0x10", "0:0>10x22", "0:22>0x18"));
  EXPECT_EQ(layout.count(0), 32);
  EXPECT_EQ(layout.count(1), 18);
}

TEST(ShardLayoutTest, PiecesOfABoxNameTheWholeTensor) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {4, 8})};
  const ShardLayout layout = LayoutOf(parameters, 2);
  WholeTensor whole{{4, 16}, {{0, 8}, {4, 16}}};
  ASSERT_OK_AND_ASSIGN(const auto pieces,
                       layout.Pieces(1, "exp_avg", parameters, {whole}));
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(Describe(pieces[0]),
            "exp_avg of w, elements [16, 32) of the box [0:4, 8:16]");
  whole.box.end[1] = 15;
  EXPECT_THAT(layout.Pieces(1, "exp_avg", parameters, {whole}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"w\"")));
}

TEST(ShardLayoutTest, NeedsARank) {
  EXPECT_THAT(ShardLayout::Create({}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got 0")));
}

// Random models in random buckets: each element is in one slice, and the pieces
// of any number of ranks become those of any other, in other buckets.
TEST(ShardLayoutTest, AnyNumberOfSlicesBecomesAnyOther) {
  constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64,
                              DType::kBFloat16};
  for (int number = 0; number < 2000 && !HasFailure(); ++number) {
    SCOPED_TRACE(number);
    std::mt19937_64 engine(static_cast<uint64_t>(number));
    const auto roll = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(engine() %
                                        static_cast<uint64_t>(high - low + 1));
    };
    std::vector<ParameterSpec> parameters;
    for (int64_t left = roll(1, 6); left > 0; --left) {
      std::vector<int64_t> shape(static_cast<size_t>(roll(0, 3)));
      for (int64_t& extent : shape) extent = roll(0, 9);
      parameters.push_back(
          Parameter(absl::StrCat("p", left), shape, kTypes[roll(0, 2)]));
    }
    std::vector<TensorPiece> saved;
    const int before = static_cast<int>(roll(1, 9));
    const ShardLayout old = LayoutOf(parameters, before, roll(1, 2000));
    for (int rank = 0; rank < before; ++rank) {
      ASSERT_OK_AND_ASSIGN(const auto pieces,
                           old.Pieces(rank, "value", parameters));
      int64_t count = 0;
      for (const TensorPiece& piece : pieces) count += piece.count();
      EXPECT_EQ(count, old.count(rank));
      saved.insert(saved.end(), pieces.begin(), pieces.end());
    }
    std::map<std::string, int64_t> elements;
    for (const TensorPiece& piece : saved) {
      elements[piece.parameter] += piece.count();
    }
    for (const ParameterSpec& parameter : parameters) {
      EXPECT_EQ(elements[parameter.name], parameter.count());
    }
    ASSERT_OK_AND_ASSIGN(const PieceIndex index, PieceIndex::Create(saved));
    const int after = static_cast<int>(roll(1, 9));
    const ShardLayout now = LayoutOf(parameters, after, roll(1, 2000));
    for (int rank = 0; rank < after; ++rank) {
      ASSERT_OK_AND_ASSIGN(const auto pieces,
                           now.Pieces(rank, "value", parameters));
      for (const TensorPiece& want : pieces) {
        ASSERT_OK_AND_ASSIGN(const auto reads, index.Find(want));
        int64_t next = 0;
        for (const PieceRead& read : reads) {
          EXPECT_EQ(read.to, next);
          next += read.count;
          EXPECT_EQ(saved[read.piece].begin + read.from, want.begin + read.to);
        }
        EXPECT_EQ(next, want.count());
      }
    }
  }
}

}  // namespace
}  // namespace coxswain
