#include "client/shard/piece.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Elements [begin, end) of a box of "w", a matrix of 4 x 6.
TensorPiece PieceOf(Box box, int64_t begin, int64_t end) {
  TensorPiece piece =
      TensorPiece::Whole("w", "value", ElementType::kFloat32, {4, 6});
  piece.box = std::move(box);
  piece.begin = begin;
  piece.end = end;
  return piece;
}

std::string Text(const std::vector<PieceRun>& runs) {
  std::string text;
  for (const PieceRun& run : runs) {
    text += std::to_string(run.from) + ">" + std::to_string(run.to) + "x" +
            std::to_string(run.count) + " ";
  }
  return text;
}

TEST(PieceTest, AWholeTensorIsOneBoxWithAllElements) {
  const TensorPiece piece =
      TensorPiece::Whole("w", "exp_avg", ElementType::kFloat16, {2, 3});
  EXPECT_EQ(piece.count(), 6);
  EXPECT_EQ(piece.bytes(), 12);
  EXPECT_EQ(Describe(piece),
            "exp_avg of w, elements [0, 6) of the box [0:2, 0:3]");
  EXPECT_OK(CheckPiece(piece));
}

TEST(PieceTest, AScalarHasOneElement) {
  const TensorPiece scalar =
      TensorPiece::Whole("s", "value", ElementType::kFloat64, {});
  EXPECT_EQ(scalar.count(), 1);
  EXPECT_OK(CheckPiece(scalar));
  EXPECT_EQ(Text(Intersect(scalar, scalar)), "0>0x1 ");
}

TEST(PieceTest, FlatRangesOfOneBoxHaveOneRunInCommon) {
  const Box whole = Box::Whole({4, 6});
  EXPECT_EQ(Text(Intersect(PieceOf(whole, 5, 17), PieceOf(whole, 10, 24))),
            "5>0x7 ");
  EXPECT_EQ(Text(Intersect(PieceOf(whole, 0, 5), PieceOf(whole, 5, 24))), "");
}

// Columns 2 to 4 of all rows, of a matrix that the other has by rows.
TEST(PieceTest, BoxesOfOtherColumnsHaveARunForEachRow) {
  EXPECT_EQ(Text(Intersect(PieceOf(Box::Whole({4, 6}), 8, 24),
                           PieceOf({{0, 2}, {4, 5}}, 0, 12))),
            "0>3x3 6>6x3 12>9x3 ");
}

TEST(PieceTest, RowsThatFollowEachOtherInBothAreOneRun) {
  EXPECT_EQ(Text(Intersect(PieceOf({{1, 0}, {4, 6}}, 0, 18),
                           PieceOf({{0, 0}, {3, 6}}, 0, 18))),
            "0>6x12 ");
}

TEST(PieceTest, WhatIsNoPieceIsRefusedWithTheNumbers) {
  TensorPiece piece = PieceOf(Box::Whole({4, 6}), 3, 25);
  EXPECT_THAT(CheckPiece(piece),
              StatusIs(kInvalid, HasSubstr("[3, 25) of a box of 24")));
  piece = PieceOf({{0, 3}, {4, 7}}, 0, 1);
  EXPECT_THAT(CheckPiece(piece),
              StatusIs(kInvalid, HasSubstr("[3, 7) in dimension 1")));
  piece = PieceOf({{0}, {4}}, 0, 1);
  EXPECT_THAT(CheckPiece(piece), StatusIs(kInvalid, HasSubstr("dimensions")));
  piece = PieceOf({{-1, 0}, {4, 6}}, 0, 1);
  EXPECT_FALSE(CheckPiece(piece).ok());
  piece = PieceOf({{3, 0}, {2, 6}}, 0, 0);
  EXPECT_FALSE(CheckPiece(piece).ok());
  piece = PieceOf(Box::Whole({4, 6}), 5, 4);
  EXPECT_FALSE(CheckPiece(piece).ok());
}

TEST(PieceTest, TensorsThatNoMemoryHoldsAreRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(CheckPiece(TensorPiece::Whole("w", "value", ElementType::kFloat64,
                                            {kMost / 8, 2})),
              StatusIs(kInvalid, HasSubstr("more bytes")));
  // Although one extent makes it empty.
  TensorPiece empty = PieceOf(Box::Whole({0, 0}), 0, 0);
  empty.shape = {0, kMost, kMost};
  empty.box = Box::Whole({0, 0, 0});
  EXPECT_THAT(CheckPiece(empty), StatusIs(kInvalid, HasSubstr("more bytes")));
  TensorPiece deep = PieceOf(Box::Whole({}), 0, 0);
  deep.shape.assign(17, 1);
  deep.box = Box::Whole(deep.shape);
  EXPECT_THAT(CheckPiece(deep), StatusIs(kInvalid, HasSubstr("17 dimensions")));
}

TEST(PieceTest, TheFirstPartsAreLargerByOne) {
  std::vector<int64_t> begins;
  for (int part = 0; part < 4; ++part) {
    begins.push_back(EvenRange::Of(10, 4, part).begin);
    EXPECT_EQ(EvenRange::Of(10, 4, part).end,
              part == 3 ? 10 : EvenRange::Of(10, 4, part + 1).begin);
  }
  EXPECT_THAT(begins, testing::ElementsAre(0, 3, 6, 8));
}

TEST(PieceTest, ABoxIsCutAlongOneDimension) {
  ASSERT_OK_AND_ASSIGN(const Box box, CutBox({4, 101}, 1, 3, 1));
  EXPECT_EQ(box, (Box{{0, 34}, {4, 68}}));
  EXPECT_THAT(CutBox({4}, 1, 2, 0),
              StatusIs(kInvalid, HasSubstr("along dimension 1")));
  EXPECT_THAT(CutBox({4}, 0, 2, 2),
              StatusIs(kInvalid, HasSubstr("part 2 of 2")));
}

}  // namespace
}  // namespace coxswain
