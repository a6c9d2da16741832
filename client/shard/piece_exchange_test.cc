#include "client/shard/piece_exchange.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/reduce/bucket_layout.h"
#include "client/shard/shard_layout.h"
#include "client/shard/shard_layout_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/in_threads.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Pieces with their memory.
struct Holding {
  std::vector<TensorPiece> pieces;
  std::vector<std::vector<float>> elements;

  void Add(TensorPiece piece) {
    elements.emplace_back(static_cast<size_t>(piece.count()), -1.0f);
    pieces.push_back(std::move(piece));
  }
  std::vector<PieceMemory> Memory() {
    std::vector<PieceMemory> memory;
    for (size_t i = 0; i < pieces.size(); ++i) {
      memory.push_back(
          {pieces[i], reinterpret_cast<char*>(elements[i].data())});
    }
    return memory;
  }
};

// Returns element `index` of a whole tensor.
float ValueOf(const TensorPiece& piece, int64_t index) {
  uint64_t hash = 1469598103934665603u;
  for (const char c : piece.parameter + "/" + piece.kind) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return static_cast<float>((hash + static_cast<uint64_t>(index)) % 100003);
}

void Fill(Holding& holding) {
  for (size_t i = 0; i < holding.pieces.size(); ++i) {
    for (size_t k = 0; k < holding.elements[i].size(); ++k) {
      holding.elements[i][k] = ValueOf(
          holding.pieces[i], holding.pieces[i].begin + static_cast<int64_t>(k));
    }
  }
}

void ExpectFilled(const Holding& holding) {
  Holding right = holding;
  Fill(right);
  EXPECT_EQ(holding.elements, right.elements);
}

void AddPieces(const ShardLayout& layout, int rank,
               const std::vector<ParameterSpec>& parameters, Holding& holding) {
  for (const char* kind : {"value", "exp_avg"}) {
    auto pieces = layout.Pieces(rank, kind, parameters);
    ASSERT_OK(pieces);
    for (TensorPiece& piece : *pieces) holding.Add(std::move(piece));
  }
}

// What one rank does.
absl::Status Exchange(Holding& have, Holding& want,
                      const PieceExchangeOptions& options,
                      Communicator& communicator) {
  COXSWAIN_ASSIGN_OR_RETURN(
      PieceExchange exchange,
      PieceExchange::Create(have.Memory(), options, communicator));
  return exchange.Get(want.Memory());
}

std::vector<absl::Status> Exchange(std::vector<Holding>& have,
                                   std::vector<Holding>& want,
                                   const PieceExchangeOptions& options = {}) {
  const auto ranks = static_cast<int>(have.size());
  const auto world = InProcessWorld::Create(ranks);
  std::vector<absl::Status> ends(have.size());
  InThreads(ranks, [&](int rank) {
    const auto communicator = world->MakeRank(rank);
    const auto at = static_cast<size_t>(rank);
    ends[at] = Exchange(have[at], want[at], options, *communicator);
  });
  return ends;
}

TensorPiece Range(const std::string& parameter, int64_t begin, int64_t end,
                  int64_t count = 12) {
  TensorPiece piece =
      TensorPiece::Whole(parameter, "value", ElementType::kFloat32, {count});
  piece.begin = begin;
  piece.end = end;
  return piece;
}

// Slices of one number of ranks and size of buckets become those of another.
TEST(PieceExchangeTest, SlicesOfAnyRanksBecomeThoseOfAnyOthers) {
  std::mt19937 random(7);
  const auto roll = [&random](int low, int high) {
    return low +
           static_cast<int>(random() % static_cast<uint32_t>(high - low + 1));
  };
  for (int round = 0; round < 60; ++round) {
    std::vector<ParameterSpec> parameters;
    for (int i = roll(1, 6); i > 0; --i) {
      ParameterSpec parameter;
      parameter.name = absl::StrCat("p", i);
      parameter.shape = {roll(1, 40), roll(1, 9)};
      parameters.push_back(parameter);
    }
    const int ranks = roll(1, 6);
    const int before = roll(1, ranks);
    const int after = roll(1, ranks);
    const ShardLayout old = LayoutOf(parameters, before, roll(1, 2000));
    const ShardLayout next = LayoutOf(parameters, after, roll(1, 2000));
    const int first = roll(0, ranks - 1);
    std::vector<Holding> have(static_cast<size_t>(ranks));
    std::vector<Holding> want(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<size_t>((rank + first) % ranks);
      if (rank < before) AddPieces(old, rank, parameters, have[at]);
      // A replica that is one of the others, too.
      if (roll(0, 3) == 0) {
        AddPieces(old, roll(0, before - 1), parameters, have[at]);
      }
      Fill(have[at]);
      if (rank < after) {
        AddPieces(next, rank, parameters, want[static_cast<size_t>(rank)]);
      }
    }
    for (const absl::Status& end : Exchange(have, want)) EXPECT_OK(end);
    for (const Holding& one : want) ExpectFilled(one);
  }
}

TEST(PieceExchangeTest, LongPiecesTravelInSeveralMessages) {
  constexpr int64_t kCount = 5 << 20;  // 20 MiB
  std::vector<Holding> have(3);
  std::vector<Holding> want(3);
  have[0].Add(Range("w", 0, kCount, kCount));
  Fill(have[0]);
  have[2].Add(Range("v", 0, 100));
  have[2].pieces[0].shape = {100};
  have[2].pieces[0].box = Box::Whole({100});
  Fill(have[2]);
  want[1].Add(Range("w", 1, kCount, kCount));
  want[2].Add(Range("w", 0, kCount - 1, kCount));
  want[0].Add(have[2].pieces[0]);
  for (const absl::Status& end : Exchange(have, want)) EXPECT_OK(end);
  for (const Holding& one : want) ExpectFilled(one);
}

TEST(PieceExchangeTest, WhatNobodyHasIsAnErrorOfAllBeforeAnythingMoves) {
  std::vector<Holding> have(2);
  std::vector<Holding> want(2);
  have[0].Add(Range("w", 0, 8));
  Fill(have[0]);
  want[0].Add(Range("w", 0, 4));
  want[1].Add(Range("w", 4, 12));
  for (const absl::Status& end : Exchange(have, want)) {
    EXPECT_THAT(end,
                StatusIs(absl::StatusCode::kNotFound,
                         AllOf(HasSubstr("of what rank 1 wants: of value of w"),
                               HasSubstr("from 8 to 11"))));
  }
  EXPECT_EQ(want[0].elements[0], std::vector<float>(4, -1));
}

TEST(PieceExchangeTest, PiecesOfDifferentStepsAreNotMixed) {
  std::vector<Holding> have(2);
  std::vector<Holding> want(2);
  have[0].Add(Range("w", 0, 6));
  have[1].Add(Range("w", 6, 12));
  have[1].pieces[0].step = 3;
  want[0].Add(Range("w", 0, 12));
  for (const absl::Status& end : Exchange(have, want)) {
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("of step 0 and of step 3")));
  }
}

TEST(PieceExchangeTest, ListsThatAreNotValidAreNamedOnAllRanks) {
  std::vector<Holding> have(2);
  std::vector<Holding> want(2);
  for (std::vector<Holding>* list : {&want, &have}) {
    (*list)[1].Add(Range("w", 0, 12));
    (*list)[1].pieces[0].end = 13;
    const auto ends = Exchange(have, want);
    EXPECT_THAT(ends[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("the pieces of rank 1")));
    EXPECT_THAT(ends[1], StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("value of w")));
  }
}

TEST(PieceExchangeTest, TablesBeyondTheLimitAreRefusedOnAllRanks) {
  std::vector<Holding> have(2);
  std::vector<Holding> want(2);
  have[0].Add(Range("w", 0, 12));
  Fill(have[0]);
  want[1].Add(Range("w", 0, 12));
  PieceExchangeOptions options;
  options.max_table_bytes = 100;
  for (const absl::Status& end : Exchange(have, want, options)) {
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kResourceExhausted,
                              HasSubstr("max_table_bytes")));
  }
}

TEST(PieceExchangeTest, ARankSeesWhatTheOthersHaveBeforeItAsks) {
  const auto world = InProcessWorld::Create(2);
  InThreads(2, [&](int rank) {
    const auto communicator = world->MakeRank(rank);
    Holding have;
    if (rank == 0) {
      have.Add(Range("w", 0, 12));
      have.pieces[0].step = 7;
      Fill(have);
    }
    ASSERT_OK_AND_ASSIGN(
        PieceExchange exchange,
        PieceExchange::Create(have.Memory(), {}, *communicator));
    ASSERT_OK_AND_ASSIGN(const int64_t step,
                         exchange.pieces().StepOf("w", "value"));
    EXPECT_EQ(step, 7);
    // More than once, and nothing is wanted, too.
    for (const bool wants : {true, false}) {
      Holding want;
      if (wants) want.Add(Range("w", 3, 9));
      ASSERT_OK(exchange.Get(want.Memory()));
      ExpectFilled(want);
    }
  });
}

TEST(PieceExchangeTest, ARankThatEndsEndsTheOthers) {
  std::vector<Holding> have(3);
  std::vector<Holding> want(3);
  have[1].Add(Range("w", 0, 12));
  Fill(have[1]);
  for (Holding& one : want) one.Add(Range("w", 0, 12));
  const auto world = InProcessWorld::Create(3);
  std::vector<absl::Status> ends(3);
  InThreads(3, [&](int rank) {
    const auto communicator = world->MakeRank(rank);
    const auto at = static_cast<size_t>(rank);
    if (rank == 2) {
      communicator->Abort("the test ends it");
      return;
    }
    ends[at] = Exchange(have[at], want[at], {}, *communicator);
  });
  EXPECT_FALSE(ends[0].ok());
  EXPECT_FALSE(ends[1].ok());
}

}  // namespace
}  // namespace coxswain
