#include "client/pipeline/stage_runner.h"

namespace coxswain {
namespace {

absl::Status InOnePiece(const char* what) {
  return absl::UnimplementedError(
      std::string("this stage cannot compute the gradients of ") + what +
      " alone; take a schedule whose backward passes are in one piece, such as "
      "1f1b");
}

}  // namespace

absl::Status StageRunner::BackwardInput(int, Activations, Activations*) {
  return InOnePiece("its inputs");
}
absl::Status StageRunner::BackwardWeight(int) {
  return InOnePiece("its parameters");
}
absl::Status StageRunner::ReduceGradients() { return absl::OkStatus(); }

}  // namespace coxswain
