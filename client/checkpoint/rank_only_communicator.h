#ifndef COXSWAIN_CLIENT_CHECKPOINT_RANK_ONLY_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_CHECKPOINT_RANK_ONLY_COMMUNICATOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Knows which rank of how many this is, and exchanges nothing: for a SaveState
// that only needs to know whose shard it makes. Whatever is exchanged all the
// same is FAILED_PRECONDITION. For the files of this room. Thread-safe.
class RankOnlyCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  absl::string_view backend() const override { return "rank_only"; }
  void Abort(absl::string_view) override {}
  int64_t wire_bytes() const override { return 0; }

 protected:
  WorkPtr DoAllReduce(Span, ReduceOp) override { return Refuse(); }
  WorkPtr DoBroadcast(Span, int) override { return Refuse(); }
  WorkPtr DoAgree(const CollectiveHeader&) override { return Refuse(); }

 private:
  static WorkPtr Refuse() {
    return Work::Ended(absl::FailedPreconditionError(
        "an averager that exchanges data to save its state cannot be saved "
        "while training goes on: use SaveTrainingState"));
  }
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_RANK_ONLY_COMMUNICATOR_H_
