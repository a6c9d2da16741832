// What is not whole, not of one model, or too large is refused with its part,
// and what was complete before stays the newest.

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "client/checkpoint/training_state.h"
#include "server/components/components.h"
#include "tests/checkpoint/pieces/piece_job.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr TestMesh kFour = {1, 4, 1};

class PieceDamageTest : public PieceJobTest {
 protected:
  // Loads all of the model on one rank.
  absl::Status LoadAll(const std::string& id) {
    RankPieces wanted = model_.Cut({}, 0);
    wanted.Spoil();
    auto saved = PieceCheckpoint::Open(client(), id);
    return saved.ok() ? saved->Load(wanted.memory()) : saved.status();
  }
  // Waits until a part of an open checkpoint is there.
  bool AwaitFirstPart() {
    const absl::Time deadline = Clock::Real()->Now() + absl::Minutes(1);
    while (Clock::Real()->Now() < deadline) {
      for (const server::CheckpointSummary& one :
           coordinator_->view().checkpoints->Overview("job", 4).newest) {
        if (!one.complete && one.bytes > 0) return true;
      }
      std::this_thread::yield();
    }
    return false;
  }
  // Commits these parts as they are.
  std::string Commit(int64_t step, const std::vector<std::string>& parts,
                     int64_t pieces) {
    std::string id;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto saved = client().Save(
          step, static_cast<int>(i), static_cast<int>(parts.size()),
          {{kPiecesLabel, absl::StrCat(pieces)}}, parts[i]);
      EXPECT_OK(saved);
      if (saved.ok()) id = *saved;
    }
    EXPECT_OK(client().Commit(id));
    return id;
  }

  const ShardedModel model_{101};
};

TEST_F(PieceDamageTest, ARankThatIsGoneLeavesTheNewestInForce) {
  const std::string before = Save(model_, kFour, 10);
  const auto saved = OnRanks(
      4,
      [&](int rank,
          std::shared_ptr<Communicator> all) -> absl::StatusOr<std::string> {
        if (rank == 2) {
          all->Abort("killed");
          return absl::AbortedError("killed");
        }
        return SavePieces(client(), *all, At(20),
                          model_.Cut(kFour, rank).memory());
      });
  for (const auto& one : saved) EXPECT_FALSE(one.ok());
  EXPECT_THAT(Ids(), ElementsAre(before));
  ExpectLoads("", model_, {1, 2, 1});
  // The next save does not mind what that one has left.
  EXPECT_THAT(Ids().front(), testing::Eq(before));
  const std::string after = Save(model_, kFour, 21);
  EXPECT_EQ(Ids().front(), after);
}

TEST_F(PieceDamageTest, ARankThatDiesBeforeItHasUploadedLeavesNothing) {
  const std::string before = Save(model_, kFour, 10);
  // It has shared out its pieces, and uploads nothing.
  const auto saved = OnRanks(
      4,
      [&](int rank,
          std::shared_ptr<Communicator> all) -> absl::StatusOr<std::string> {
        const RankPieces mine = model_.Cut(kFour, rank);
        if (rank != 3) {
          return SavePieces(client(), *all, At(20), mine.memory());
        }
        std::vector<TensorPiece> pieces;
        for (const PieceMemory& one : mine.memory()) {
          pieces.push_back(one.piece);
        }
        EXPECT_OK(SharePieces(*all, pieces, absl::OkStatus()));
        all->Abort("killed");
        return absl::AbortedError("killed");
      });
  for (const auto& one : saved) EXPECT_FALSE(one.ok());
  EXPECT_THAT(Ids(), ElementsAre(before));
}

TEST_F(PieceDamageTest, ACoordinatorThatIsRestartedBetweenPartsGetsThemAgain) {
  const auto saved = OnRanks(
      2,
      [&](int rank,
          std::shared_ptr<Communicator> all) -> absl::StatusOr<std::string> {
        const RankPieces mine = model_.Cut({1, 2, 1}, rank);
        if (rank == 0) return SavePieces(client(), *all, At(31), mine.memory());
        // What SavePieces does, with a restart before this rank's part.
        CheckpointLabel label = At(31);
        const auto own = ShareOfPieces(*all, mine.memory(), &label);
        EXPECT_OK(own);
        label.metadata["world_size"] = "2";
        EXPECT_TRUE(AwaitFirstPart());
        StopCoordinator();
        StartCoordinator();
        return SaveTogether(client(), *all, label,
                            SerializePiecePart(*own, ""));
      });
  for (const auto& one : saved) EXPECT_OK(one);
  ExpectLoads("", model_, {1, 3, 1});
}

TEST_F(PieceDamageTest, ADamagedPartIsNamed) {
  // Its parts have more blocks than that of the table.
  const ShardedModel model(301);
  const std::string id = Save(model, kFour, 10);
  FlipBit(FileOf(id, 2), Sizes(id)[2] / 2);
  ASSERT_OK_AND_ASSIGN(PieceCheckpoint saved,
                       PieceCheckpoint::Open(client(), id));
  EXPECT_THAT(saved.Load(model.Cut({}, 0).memory()),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("shard 2 of checkpoint"), HasSubstr(id),
                             HasSubstr("use an older checkpoint"))));
  // Who needs nothing of it does not mind.
  EXPECT_OK(saved.Load(model.Cut(kFour, 0).memory()));
}

TEST_F(PieceDamageTest, EveryPlaceOfAPartIsChecked) {
  const std::string id = Save(model_, {1, 2, 1}, 10);
  const int64_t size = Sizes(id)[1];
  const std::string file = FileOf(id, 1);
  // Magic, length, table, elements, state, checksums.
  for (const int64_t byte :
       {int64_t{0}, int64_t{9}, int64_t{40}, size / 3, size - 20, size - 1}) {
    FlipBit(file, byte);
    const absl::Status status = LoadAll(id);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                 HasSubstr("shard 1 of checkpoint")))
        << byte;
    FlipBit(file, byte);
  }
  EXPECT_OK(LoadAll(id));
}

TEST_F(PieceDamageTest, AMissingOrShortPartIsNamed) {
  const std::string id = Save(model_, kFour, 10);
  const std::string file = FileOf(id, 3);
  std::filesystem::resize_file(file, 1000);
  EXPECT_THAT(LoadAll(id), StatusIs(absl::StatusCode::kDataLoss,
                                    AllOf(HasSubstr("shard 3"),
                                          HasSubstr("has 1000 bytes"))));
  std::filesystem::remove(file);
  EXPECT_THAT(LoadAll(id), StatusIs(absl::StatusCode::kDataLoss,
                                    HasSubstr("shard 3 of checkpoint")));
}

TEST_F(PieceDamageTest, APartOfAnotherModelIsNamed) {
  RankPieces ours = model_.Cut({1, 2, 1}, 0);
  RankPieces other = ShardedModel(102).Cut({1, 2, 1}, 1);
  const int64_t pieces =
      static_cast<int64_t>(ours.memory().size() + other.memory().size());
  const std::string id =
      Commit(5,
             {SerializePiecePart(ours.memory(), "").value(),
              SerializePiecePart(other.memory(), "").value()},
             pieces);
  EXPECT_THAT(LoadAll(id), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    AllOf(HasSubstr(id), HasSubstr("shard 1"),
                                          HasSubstr("not of one model"))));
  EXPECT_THAT(LoadAll(Commit(6, {SerializePiecePart(ours.memory(), "").value()},
                             pieces)),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr(absl::StrCat("says that it has ", pieces))));
}

TEST_F(PieceDamageTest, RanksOfDifferentModelsSaveNothing) {
  const auto saved =
      OnRanks(3, [&](int rank, std::shared_ptr<Communicator> all) {
        const RankPieces mine =
            ShardedModel(rank == 2 ? 102 : 101).Cut({1, 3, 1}, rank);
        return SavePieces(client(), *all, At(5), mine.memory());
      });
  for (const auto& one : saved) {
    EXPECT_THAT(one, StatusIs(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("another shape, type or step")));
  }
  EXPECT_THAT(saved[2], StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("value of embedding.weight")));
  EXPECT_TRUE(Ids().empty());
}

TEST_F(PieceDamageTest, AnotherModelIsRefusedAndNothingIsWritten) {
  const std::string id = Save(model_, kFour, 10);
  ASSERT_OK_AND_ASSIGN(PieceCheckpoint saved,
                       PieceCheckpoint::Open(client(), id));
  RankPieces wanted = model_.Cut({}, 0);
  wanted.Spoil();
  const std::string before = wanted.bytes(0);
  const TensorPiece larger = TensorPiece::Whole("embedding.weight", "value",
                                                ElementType::kFloat32, {3, 3});
  wanted.Add(larger, std::string(36, 'x'));
  EXPECT_THAT(saved.Load(wanted.memory()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(id), HasSubstr("is float32 [3, 3]"))));
  EXPECT_TRUE(wanted.bytes(0) == before);

  RankPieces unknown;
  unknown.Add(TensorPiece::Whole("embedding.weight", "momentum_buffer",
                                 ElementType::kFloat32, {1}),
              "1234");
  EXPECT_THAT(saved.Load(unknown.memory()),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("momentum_buffer of embedding.weight")));
}

TEST_F(PieceDamageTest, ALaterFormatIsRefused) {
  RankPieces ours = model_.Cut({}, 0);
  std::string part = SerializePiecePart(ours.memory(), "").value();
  part[4] = 2;
  EXPECT_THAT(
      LoadAll(Commit(5, {part}, static_cast<int64_t>(ours.memory().size()))),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("version 2"), HasSubstr("shard 0"))));
}

TEST_F(PieceDamageTest, OtherCheckpointsHaveNoPieces) {
  EXPECT_THAT(LoadAll(""), StatusIs(absl::StatusCode::kNotFound,
                                    HasSubstr("no complete checkpoint")));
  ASSERT_OK_AND_ASSIGN(
      const std::string id,
      client().Save(1, 0, 1, {}, SerializeTrainingShard(TrainingShard())));
  ASSERT_OK(client().Commit(id));
  EXPECT_THAT(LoadAll(id), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("has no pieces")));
  EXPECT_OK(LoadTrainingState(client(), id));
}

TEST_F(PieceDamageTest, WhatPassesALimitIsNotRead) {
  const std::string id = Save(model_, kFour, 10);
  PieceLimits limits;
  limits.parts = 3;
  EXPECT_THAT(PieceCheckpoint::Open(client(), id, limits),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("4 parts, more than the 3")));
  limits = PieceLimits();
  limits.index_bytes = 1000;
  EXPECT_THAT(PieceCheckpoint::Open(client(), id, limits),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("more than the 1000")));
  limits.index_bytes = 10;
  EXPECT_THAT(
      PieceCheckpoint::Open(client(), id, limits),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("checksums")));
}

}  // namespace
}  // namespace coxswain
