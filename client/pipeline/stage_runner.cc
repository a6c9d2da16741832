#include "client/pipeline/stage_runner.h"

namespace coxswain {
namespace {

absl::Status NotInHalves() {
  return absl::UnimplementedError(
      "this stage has no backward passes in halves; take a schedule whose "
      "backward passes are whole, such as 1f1b");
}

}  // namespace

absl::Status StageRunner::Begin(int, bool) { return absl::OkStatus(); }
absl::Status StageRunner::BackwardInput(int, Activations, Activations*) {
  return NotInHalves();
}
absl::Status StageRunner::BackwardWeight(int) { return NotInHalves(); }
absl::Status StageRunner::ReduceGradients() { return absl::OkStatus(); }

}  // namespace coxswain
