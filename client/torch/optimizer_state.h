#ifndef COXSWAIN_CLIENT_TORCH_OPTIMIZER_STATE_H_
#define COXSWAIN_CLIENT_TORCH_OPTIMIZER_STATE_H_

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace coxswain::torch {

// What libtorch's element-wise optimizers keep of a parameter, which are
// tensors of the parameter's elements and a count of steps. For this folder and
// those below it. Functions without a status throw what libtorch throws.

// By libtorch's name of each tensor: "exp_avg".
struct SliceState {
  std::vector<std::pair<std::string, ::torch::Tensor>> tensors;
  // As the optimizer counts them; 1 for one that counts none, once it has kept
  // something.
  int64_t steps = 0;
};

// Fails with INVALID_ARGUMENT for an optimizer that is known not to act on each
// element alone.
absl::Status CheckElementWise(const ::torch::optim::Optimizer& optimizer);

// Fails with UNIMPLEMENTED for an optimizer whose state is not known: another
// than SGD, Adam, AdamW, RMSprop and Adagrad.
absl::Status CheckKnown(const ::torch::optim::Optimizer& optimizer);

// Makes an optimizer of the same kind and defaults as one that is known, over
// these groups.
std::unique_ptr<::torch::optim::Optimizer> MakeLike(
    const ::torch::optim::Optimizer& optimizer,
    std::vector<::torch::optim::OptimizerParamGroup> groups);

// Returns whether what a known optimizer keeps of a parameter is of the type
// that its kind keeps, or nothing: a class that is derived from one may keep
// something of its own.
bool KeepsKnownState(const ::torch::optim::Optimizer& optimizer,
                     const ::torch::Tensor& parameter);

// Returns what a known optimizer keeps of a parameter, its own tensors, always
// in the same order; no tensors, if nothing. Throws c10::Error where that is
// not KeepsKnownState.
SliceState StateOf(const ::torch::optim::Optimizer& optimizer,
                   const ::torch::Tensor& parameter);

// Replaces that, with a tensor of the parameter's elements for each name that
// `read` has: it fills in the tensor, and returns false for a name that it has
// not. Fails with FAILED_PRECONDITION for lack of a tensor without which the
// optimizer cannot step.
absl::Status SetState(
    ::torch::optim::Optimizer& optimizer, const ::torch::Tensor& parameter,
    int64_t step,
    const std::function<absl::StatusOr<bool>(const std::string& name,
                                             const ::torch::Tensor& to)>& read);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_OPTIMIZER_STATE_H_
