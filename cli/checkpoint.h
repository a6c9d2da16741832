#ifndef COXSWAIN_CLI_CHECKPOINT_H_
#define COXSWAIN_CLI_CHECKPOINT_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/checkpoint_transfer.h"
#include "cli/options.h"

namespace coxswain {

// What the commands need of the world.
struct CheckpointWorld {
  Transfer transfer;
  // Asks a person, and returns whether the answer was yes; an error if nobody
  // is there to be asked.
  std::function<absl::StatusOr<bool>(const std::string& question)> confirm;
};

// The usual one: the machine's disk, stderr and the terminal.
CheckpointWorld RealCheckpointWorld(CoordinatorStub* stub);

// `coxswain checkpoint ...`; returns the text for stdout. Errors as FindJob and
// PickCheckpoint, and as checkpoint_transfer.h.
absl::StatusOr<std::string> RunCheckpoint(const CheckpointOptions& options,
                                          const CheckpointWorld& world);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CHECKPOINT_H_
