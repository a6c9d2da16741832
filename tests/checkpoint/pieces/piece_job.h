#ifndef COXSWAIN_TESTS_CHECKPOINT_PIECES_PIECE_JOB_H_
#define COXSWAIN_TESTS_CHECKPOINT_PIECES_PIECE_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/checkpoint/piece_checkpoint.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "tests/checkpoint/pieces/sharded_model.h"

namespace coxswain {

// A coordinator of this process with files, and a job whose one member saves
// and loads for all ranks, each in a thread.
class PieceJobTest : public testing::Test {
 protected:
  PieceJobTest();
  ~PieceJobTest() override;

  void StartCoordinator();
  void StopCoordinator() { coordinator_.reset(); }

  CheckpointClient& client() { return session_->checkpoints(); }

  // Called with each rank, in a thread each, and a communicator of all.
  using RankWork = std::function<absl::StatusOr<std::string>(
      int rank, std::shared_ptr<Communicator>)>;
  // Returns what each rank did.
  static std::vector<absl::StatusOr<std::string>> OnRanks(int size,
                                                          const RankWork& work);
  // Saves the model; a failure fails the test. Returns the checkpoint's id.
  std::string Save(const ShardedModel& model, const TestMesh& mesh,
                   int64_t step);
  // Expects that each rank of the mesh loads what it is to have.
  void ExpectLoads(const std::string& id, const ShardedModel& model,
                   const TestMesh& mesh);
  std::vector<int64_t> Sizes(const std::string& id);
  std::vector<std::string> Ids();
  // Returns the file of a shard.
  std::string FileOf(const std::string& id, int shard) const;
  void FlipBit(const std::string& file, int64_t byte) const;

  static CheckpointLabel At(int64_t step) {
    CheckpointLabel label;
    label.step = step;
    return label;
  }

  std::string folder_;
  int port_ = 0;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::unique_ptr<Session> session_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CHECKPOINT_PIECES_PIECE_JOB_H_
