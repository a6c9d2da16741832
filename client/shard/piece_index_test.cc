#include "client/shard/piece_index.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Elements [begin, end) of "v", a vector of 100.
TensorPiece Part(int64_t begin, int64_t end, const std::string& kind = "m") {
  TensorPiece piece =
      TensorPiece::Whole("v", kind, ElementType::kFloat32, {100});
  piece.begin = begin;
  piece.end = end;
  return piece;
}

PieceIndex IndexOf(std::vector<TensorPiece> pieces) {
  auto index = PieceIndex::Create(std::move(pieces));
  EXPECT_OK(index);
  return *std::move(index);
}

std::string ReadsOf(const PieceIndex& index, const TensorPiece& want) {
  const auto reads = index.Find(want);
  EXPECT_OK(reads);
  std::string text;
  for (const PieceRead& read : *reads) {
    text += std::to_string(read.piece) + ":" + std::to_string(read.from) + ">" +
            std::to_string(read.to) + "x" + std::to_string(read.count) + " ";
  }
  return text;
}

TEST(PieceIndexTest, APieceComesFromAllThatHaveAPartOfIt) {
  const PieceIndex index = IndexOf({Part(50, 100), Part(0, 25), Part(25, 50)});
  EXPECT_EQ(ReadsOf(index, Part(20, 60)), "1:20>0x5 2:0>5x25 0:0>30x10 ");
  EXPECT_EQ(ReadsOf(index, Part(30, 30)), "");
}

TEST(PieceIndexTest, ReplicasAreReadOnceAndTheFirstIsTaken) {
  const PieceIndex index = IndexOf({Part(10, 90), Part(0, 100), Part(0, 100)});
  EXPECT_EQ(ReadsOf(index, Part(0, 100)), "1:0>0x10 0:0>10x80 1:90>90x10 ");
}

TEST(PieceIndexTest, KindsAndParametersAreApart) {
  const PieceIndex index = IndexOf({Part(0, 100, "a"), Part(0, 50, "b")});
  EXPECT_EQ(ReadsOf(index, Part(60, 70, "a")), "0:60>0x10 ");
  EXPECT_THAT(index.Find(Part(0, 1, "c")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("none of 2 pieces is of c of v")));
}

TEST(PieceIndexTest, WhatNoPieceHasIsNamed) {
  const PieceIndex index = IndexOf({Part(0, 25), Part(50, 100)});
  EXPECT_THAT(index.Find(Part(20, 60)),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("elements [20, 60)"),
                             HasSubstr("those from 25 to 49"))));
}

TEST(PieceIndexTest, AnotherModelsTensorIsRefused) {
  const PieceIndex index = IndexOf({Part(0, 100)});
  TensorPiece other = Part(0, 10);
  other.dtype = ElementType::kFloat64;
  EXPECT_THAT(index.Find(other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          AllOf(HasSubstr("float64 [100] here"),
                                                HasSubstr("float32 [100]"))));
  other.dtype = ElementType::kFloat32;
  other.shape = {120};
  EXPECT_THAT(index.Find(other),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::_));
}

TEST(PieceIndexTest, PiecesThatAreNotOfOneTensorAreRefused) {
  TensorPiece other = Part(50, 100);
  other.step = 3;
  EXPECT_THAT(PieceIndex::Create({Part(0, 50), other}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step 0 and of step 3")));
  other = Part(50, 100);
  other.shape = {10, 10};
  other.box = Box::Whole(other.shape);
  EXPECT_THAT(PieceIndex::Create({Part(0, 50), other}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not of one model")));
  other.end = 101;
  EXPECT_THAT(PieceIndex::Create({other}),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

TEST(PieceIndexTest, TheStepIsThatOfTheSavedPieces) {
  TensorPiece saved = Part(0, 100);
  saved.step = 7;
  const PieceIndex index = IndexOf({saved});
  EXPECT_EQ(*index.StepOf("v", "m"), 7);
  EXPECT_EQ(ReadsOf(index, Part(0, 1)), "0:0>0x1 ");
  EXPECT_THAT(index.StepOf("w", "m"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
}

}  // namespace
}  // namespace coxswain
