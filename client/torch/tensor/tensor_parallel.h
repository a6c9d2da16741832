#ifndef COXSWAIN_CLIENT_TORCH_TENSOR_TENSOR_PARALLEL_H_
#define COXSWAIN_CLIENT_TORCH_TENSOR_TENSOR_PARALLEL_H_

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"

namespace coxswain::torch {

struct TensorParallelOptions {
  // Of the ranks that divide each layer among them: MeshGroups::tp. Outlives
  // the layers and their graphs.
  Communicator* communicator = nullptr;
  // Whether what lies between the divided layers is divided along the sequence.
  bool sequence = false;
  // Of each collective.
  absl::Duration timeout = absl::Minutes(5);
};

// What the layers of a rank share that are divided among the ranks of one
// group. All ranks call the same layers in the same order, with activations of
// the same shapes. Activations are row-major tensors of float32 or float64 in
// the CPU's memory, [..., sequence, features].
//
// Threading: one thread, which also runs the backward passes: libtorch runs
// those of the CPU on the thread that calls them.
//
// Errors: layers neither throw nor return a status, for a pass that ends in the
// middle would leave the other ranks waiting. The first error of a collective,
// or of a layer that gets what does not fit it, is kept; it aborts the
// communicator, which ends the others' waits, and results from then on are
// zeros. Ask for it after each pass:
//
//   loss.backward();
//   COXSWAIN_RETURN_IF_ERROR(parallel->TakeError());
//
// What libtorch itself throws passes through.
class TensorParallel {
 public:
  // INVALID_ARGUMENT: no communicator, or no time.
  static absl::StatusOr<std::shared_ptr<TensorParallel>> Create(
      const TensorParallelOptions& options);
  // One without a communicator, of rank 0 of `size`: what layers of a job are
  // described with before there are ranks. Of one rank it serves for training,
  // too; of several, each collective fails with FAILED_PRECONDITION.
  static std::shared_ptr<TensorParallel> ForDescription(int size,
                                                        bool sequence);

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool sequence() const { return options_.sequence; }

  // Returns the first error since the last call; OK if there was none. The
  // communicator stays aborted.
  absl::Status TakeError();

  // The following is for the layers.

  bool failed() const { return !error_.ok(); }
  // Keeps an error unless there is one, and aborts the communicator.
  void Fail(const absl::Status& error);
  // Returns what a layer that has failed returns: a backward pass ends there.
  static ::torch::Tensor Zeros(at::IntArrayRef sizes,
                               const ::torch::TensorOptions& form);

  // Return the results of collectives, or zeros once there is an error. A group
  // of one rank starts none. The first takes over the memory of `own`.
  ::torch::Tensor AllReduce(::torch::Tensor own, ReduceOp op = ReduceOp::kSum);
  // [...] of each rank -> [size(), ...].
  ::torch::Tensor AllGather(const ::torch::Tensor& own);
  // [size(), ...] -> [...]: the sum of the ranks' slices of this rank.
  ::torch::Tensor ReduceScatter(const ::torch::Tensor& slices);

 private:
  TensorParallel(const TensorParallelOptions& options, int rank, int size)
      : options_(options), rank_(rank), size_(size) {}

  // Returns whether collectives may begin with this tensor.
  bool MayMove(const ::torch::Tensor& tensor);
  // Waits; returns whether it has ended well.
  bool Await(absl::string_view what, const WorkPtr& work,
             std::vector<::torch::Tensor> memory);

  const TensorParallelOptions options_;
  const int rank_;
  const int size_;
  absl::Status error_;
};

using TensorParallelPtr = std::shared_ptr<TensorParallel>;

// Before a layer whose outputs are divided ("f" of Megatron-LM). Forward: the
// activation as it is; backward: the sum of the ranks' gradients. With sequence
// parallelism forward all-gathers the sequence, and backward reduce-scatters.
::torch::Tensor CopyToParallel(const ::torch::Tensor& activation,
                               const TensorParallelPtr& parallel);

// After a layer whose inputs are divided ("g"). Forward: the sum of the ranks'
// activations; backward: the gradient as it is. With sequence parallelism
// forward reduce-scatters along the sequence, and backward all-gathers.
::torch::Tensor ReduceFromParallel(const ::torch::Tensor& activation,
                                   const TensorParallelPtr& parallel);

// The ends of a part of the model that is divided along the sequence, where
// outside of it all ranks compute the same. Independent of `sequence`.
// Forward: this rank's part; backward: all-gather.
::torch::Tensor ScatterToSequence(const ::torch::Tensor& activation,
                                  const TensorParallelPtr& parallel);
// Forward: all-gather; backward: this rank's part.
::torch::Tensor GatherFromSequence(const ::torch::Tensor& activation,
                                   const TensorParallelPtr& parallel);

// With sequence parallelism, parameters that all ranks have, and use on their
// own part of the sequence (of norms, and biases after a sum), get a part of
// their gradients on each rank. Replaces them by their sum, in one all-reduce,
// after the last backward pass of a step; undefined ones count as zeros.
// Without sequence parallelism it does nothing. Returns what TakeError does.
absl::Status SumSequenceGradients(
    const std::vector<::torch::Tensor>& parameters,
    const TensorParallelPtr& parallel);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_TENSOR_TENSOR_PARALLEL_H_
