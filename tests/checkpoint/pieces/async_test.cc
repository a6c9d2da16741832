// Pieces that are saved beside training are those of the moment of the copy,
// and come with the hook's state and the program's.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/checkpoint/async_checkpoint.h"
#include "client/checkpoint/training_state.h"
#include "client/comm/in_process/in_process_world.h"
#include "hooks/registry/registry.h"
#include "tests/checkpoint/pieces/piece_job.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class AsyncPiecesTest : public PieceJobTest {
 protected:
  // Saves what each rank has at `step`, and spoils it right after the copy.
  // Returns what became of it on each.
  std::vector<absl::StatusOr<std::string>> SaveBeside(const ShardedModel& model,
                                                      const TestMesh& mesh,
                                                      int64_t step) {
    return OnRanks(
        mesh.size(),
        [&](int rank,
            std::shared_ptr<Communicator> all) -> absl::StatusOr<std::string> {
          AsyncCheckpoint::Options options;
          options.rank = rank;
          options.world_size = mesh.size();
          options.connect = [all](int) { return all; };
          AsyncCheckpoint saver(client(), options);
          auto hook = MakeHook("allreduce");
          EXPECT_OK(hook);
          EXPECT_OK((*hook)->Configure({}, mesh.size()));
          AsyncCheckpoint::Source source;
          source.step = step;
          source.hook = hook->get();
          source.make_hook = [] { return MakeHook("allreduce"); };
          source.fill_blobs = [](AsyncCheckpoint::Blobs* blobs) {
            (*blobs)["sampler"] = "at 17";
            return absl::OkStatus();
          };
          RankPieces mine = model.Cut(mesh, rank);
          source.fill_pieces =
              [&](std::vector<PieceMemory>* pieces) -> absl::Status {
            if (rank == failing_) return absl::InternalError("no memory");
            *pieces = mine.memory();
            return absl::OkStatus();
          };
          saver.Snapshot(source).IgnoreError();
          mine.Spoil();
          const absl::Status saved = saver.Finish(absl::Seconds(60));
          if (!saved.ok()) return saved;
          return saver.last()->checkpoint_id;
        });
  }

  int failing_ = -1;
};

TEST_F(AsyncPiecesTest, TheyAreThoseOfTheCopyAndTheStateIsThereToo) {
  const ShardedModel model(101);
  const auto saved = SaveBeside(model, {2, 2, 1}, 12);
  for (const auto& one : saved) ASSERT_OK(one);
  ExpectLoads(*saved[0], model, {1, 3, 1});
  ASSERT_OK_AND_ASSIGN(const TrainingState state,
                       LoadTrainingState(client(), *saved[0]));
  EXPECT_EQ(state.step, 12);
  EXPECT_EQ(state.hook.spec, "allreduce");
  EXPECT_EQ(state.blobs.at("sampler"), "at 17");
  EXPECT_EQ(state.metadata.at("world_size"), "4");
}

TEST_F(AsyncPiecesTest, ARankThatCannotCopyLeavesTheNewestInForce) {
  const ShardedModel model(50);
  const std::string before = Save(model, {1, 2, 1}, 10);
  failing_ = 1;
  const auto saved = SaveBeside(model, {1, 2, 1}, 12);
  EXPECT_THAT(saved[1],
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no memory")));
  EXPECT_THAT(saved[0], StatusIs(absl::StatusCode::kAborted,
                                 HasSubstr("could not copy step 12")));
  EXPECT_THAT(Ids(), testing::ElementsAre(before));
}

TEST_F(AsyncPiecesTest, PiecesAloneAreNoTrainingState) {
  const std::string id = Save(ShardedModel(50), {1, 2, 1}, 10);
  // These have bytes of their own that are no training state.
  EXPECT_THAT(LoadTrainingState(client(), id),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("CXTS")));
  for (const auto& saved :
       OnRanks(2, [&](int rank, std::shared_ptr<Communicator> all) {
         return SavePieces(client(), *all, At(11),
                           ShardedModel(50).Cut({1, 2, 1}, rank).memory());
       })) {
    EXPECT_OK(saved);
  }
  EXPECT_THAT(LoadTrainingState(client()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("has pieces of a model"),
                             HasSubstr("load the pieces"))));
}

}  // namespace
}  // namespace coxswain
