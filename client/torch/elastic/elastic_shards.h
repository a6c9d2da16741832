#ifndef COXSWAIN_CLIENT_TORCH_ELASTIC_ELASTIC_SHARDS_H_
#define COXSWAIN_CLIENT_TORCH_ELASTIC_ELASTIC_SHARDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/shard/piece.h"
#include "client/shard/piece_exchange.h"
#include "client/torch/shard/sharded_optimizer.h"

namespace coxswain::torch {

// Which state of a job some elements are of: two states are the same if both
// numbers are.
struct ShardVersion {
  int64_t trained = 0;   // the generation of its last step
  int64_t progress = 0;  // ElasticState::progress
  friend bool operator==(const ShardVersion& a, const ShardVersion& b) {
    return a.trained == b.trained && a.progress == b.progress;
  }
};

// What a rank keeps of a sharded model between two generations, whose ranks
// are others: the slices that it had in the first one, of which all ranks of
// the second one get theirs. Used by ElasticTraining.
//
// A rank that is lost takes its slice with it. Where another rank has the
// elements, too, as replicas do, they come from there.
//
// It is a copy, of as many bytes as the slices, from the end of one generation
// until the next one's ranks have theirs. Threading: the thread that trains.
class ElasticShards {
 public:
  explicit ElasticShards(const PieceExchangeOptions& options = {})
      : options_(options) {}

  // Copies what the optimizer has, in place of what was kept; nothing at
  // progress 0, with which training begins on all ranks. Fails as
  // ShardedOptimizer::Pieces; nothing is kept then.
  absl::Status Keep(const ShardedOptimizer& optimizer,
                    const ShardVersion& version);

  // Gives the ranks of a communicator their slices of this version, from those
  // that have kept it. What was kept stays, for ranks that are lost meanwhile.
  // Collective. Returns, on all ranks alike,
  //   NOT_FOUND  some elements are on no rank; the optimizer's contents are
  //              undefined
  // and the errors of the communicator and of ShardedOptimizer::Load.
  absl::Status Restore(const ShardVersion& version, Communicator& communicator,
                       ShardedOptimizer* optimizer);

  // Where training is to begin, with rank 0's parameters: fails with DATA_LOSS
  // on all ranks if rank 0 has slices of a step that was cut short. Collective.
  absl::Status CheckUntouched(Communicator& communicator) const;

  // Notes that this version was loaded from a checkpoint.
  void NoteLoaded(const ShardVersion& version) { loaded_ = version; }
  // Returns whether one of the ranks has noted this version. Collective.
  absl::StatusOr<bool> WasLoaded(const ShardVersion& version,
                                 Communicator& communicator) const;

  void Forget() {
    kept_.clear();
    touched_ = false;
  }

 private:
  struct Kept {
    TensorPiece piece;
    std::string elements;
  };

  const PieceExchangeOptions options_;
  ShardVersion version_;
  std::vector<Kept> kept_;
  // Has slices other than those that training begins with.
  bool touched_ = false;
  std::optional<ShardVersion> loaded_;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_ELASTIC_ELASTIC_SHARDS_H_
