#ifndef COXSWAIN_CLIENT_CHECKPOINT_SAVE_TOGETHER_H_
#define COXSWAIN_CLIENT_CHECKPOINT_SAVE_TOGETHER_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/comm/communicator.h"
#include "client/reduce/averager.h"
#include "client/reduce/hook.h"

// The part of a save that all ranks make together: every rank uploads, and one
// of them commits. For the files of this folder.

namespace coxswain {

// Ranks wait for each other as long as the slowest upload may take.
constexpr absl::Duration kAgreementTimeout = absl::Minutes(15);

// The description that a checkpoint of training state has of itself.
struct CheckpointLabel {
  int64_t step = 0;
  std::map<std::string, std::string> metadata;  // the same on all ranks
  CheckpointRetention retention;                // rank 0's counts
};

// Returns the complete checkpoint of this id, or the newest one if it is empty;
// NOT_FOUND if there is none.
absl::StatusOr<CheckpointDescription> FindCheckpoint(
    CheckpointClient& checkpoints, absl::string_view id);

// Returns OK if the states of these can be saved. Fails with INVALID_ARGUMENT
// if the hook needs an averager and there is none, and with FAILED_PRECONDITION
// if the ranks' parameters differ.
absl::Status CheckSavable(const Hook& hook, const Averager* averager);

// Returns OK on every rank if all ranks pass OK; fails with ABORTED if another
// rank does not. Collective.
absl::Status Agree(Communicator& communicator, const absl::Status& mine,
                   absl::string_view what,
                   absl::Duration timeout = kAgreementTimeout);

// Uploads this rank's shard, which may be an error; rank 0 commits once all
// ranks have uploaded, and again if a coordinator that was restarted meanwhile
// lacks some shards. Collective. Returns the checkpoint's id on all ranks, or
// an error on all of them, unless the communicator itself fails in between.
absl::StatusOr<std::string> SaveTogether(
    CheckpointClient& checkpoints, Communicator& communicator,
    const CheckpointLabel& label, const absl::StatusOr<std::string>& shard,
    absl::Duration timeout = kAgreementTimeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_CHECKPOINT_SAVE_TOGETHER_H_
