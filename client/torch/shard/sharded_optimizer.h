#ifndef COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_OPTIMIZER_H_
#define COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_OPTIMIZER_H_

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/comm/communicator.h"
#include "client/device/runtime.h"
#include "client/shard/offloaded_slices.h"
#include "client/shard/piece.h"
#include "client/shard/shard_layout.h"
#include "client/torch/distributed_data_parallel.h"

namespace coxswain::torch {

// Makes an optimizer over these groups of tensors: slices of parameters, of one
// dimension, each in its parameter's group. Some groups may be empty.
using OptimizerMaker = std::function<std::unique_ptr<::torch::optim::Optimizer>(
    std::vector<::torch::optim::OptimizerParamGroup>)>;

struct ShardedOptimizerOptions {
  // The trainable parameters by group, as the maker gets their slices; empty:
  // all in one group. A parameter in no group is never stepped.
  std::vector<std::vector<::torch::Tensor>> groups;
  // With the wrapper's option `offload`: the device that copies slices to the
  // host and back. Null: the communicator's; without one there is nothing to
  // copy. Outlives the optimizer.
  DeviceRuntime* offload_by = nullptr;
};

// Elements that this rank keeps for those that share its replica's state, and
// where they lie in the CPU's memory, row-major.
struct KeptPiece {
  TensorPiece piece;
  Span memory;
  ::torch::Tensor copy = {};  // whose elements these are; undefined: no copy's
};

// Where pieces are read from, such as a checkpoint's.
class PieceReader {
 public:
  virtual ~PieceReader() = default;
  // Returns the step of the pieces of this kind; NOT_FOUND: there are none. See
  // PieceIndex::StepOf.
  virtual absl::StatusOr<int64_t> StepOf(const std::string& parameter,
                                         const std::string& kind) = 0;
  // Fills in the elements of a piece, now or in Finish; its step does not
  // matter.
  virtual absl::Status Read(const TensorPiece& want, const Span& to) = 0;
  // Called when all pieces have been asked for, with their memory there.
  virtual absl::Status Finish() { return absl::OkStatus(); }
};

// ZeRO: the optimizer of a model of which each rank keeps the state of its
// slices of the buckets only (docs/parallelism.md). A step updates the own
// slices of the parameters, and copies all ranks' slices to all: with
// reducer.hybrid within each shard group.
//
// With the wrapper's option `offload`, of a module on a GPU, the optimizer acts
// on copies of the own slices' values in the host's memory, where its state is
// then (client/shard/offloaded_slices.h), bucket by bucket: its step() is
// called for each bucket with elements of this rank. Changes that the program
// makes of the parameters are taken over before the next step where libtorch
// counts them (Tensor::_version).
//
//   options.zero = 1;                              // DistributedDataParallel's
//   auto sharded = ShardedOptimizer::Create(*ddp, optimizer);
//   ...
//   COXSWAIN_RETURN_IF_ERROR(sharded->Step().status());
//
// in place of ddp->StepOptimizer(optimizer). Parameters get the values that the
// optimizer would give them unsharded, bit for bit where the back end's
// averages are.
//
// The module's parameters become views of memory that is divided as the
// buckets, and stay so after this object's end. They keep what libtorch knows
// of them (Tensor::is_same), and become row-major.
//
// All ranks call Create, Step and Load alike. Errors: what goes wrong in Step,
// such as what libtorch throws, is kept by the wrapper, which aborts: the
// parameters are then undefined. Life-cycle: the wrapper outlives it.
// Threading: the thread that trains.
class ShardedOptimizer {
 public:
  // Shards an optimizer of the module's parameters (SGD, Adam, AdamW, RMSprop
  // or Adagrad) that has taken no step, and is kept as a description: its
  // groups with their options, read before each step, so that schedules of
  // learning rates work on it as before. It outlives the result. Fails with
  //   FAILED_PRECONDITION  the wrapper's option zero is 0
  //   INVALID_ARGUMENT     an optimizer that does not act on each element
  //                        alone, or has taken steps; one of tensors that are
  //                        not the module's
  //   UNIMPLEMENTED        an optimizer of another kind: pass a maker
  static absl::StatusOr<std::unique_ptr<ShardedOptimizer>> Create(
      DistributedDataParallel& ddp, ::torch::optim::Optimizer& optimizer);

  // Shards any optimizer that acts on each element alone, which is not checked.
  // Fails likewise.
  static absl::StatusOr<std::unique_ptr<ShardedOptimizer>> Create(
      DistributedDataParallel& ddp, const OptimizerMaker& make,
      const ShardedOptimizerOptions& options = {});

  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  // Takes the window's step, and returns false if there was none to take: see
  // DistributedDataParallel::StepOptimizer.
  absl::StatusOr<bool> Step();

  // Returns the optimizer of the slices, for its groups' options.
  ::torch::optim::Optimizer& optimizer() { return *optimizer_; }

  // Returns the optimizer whose groups' options count: the one that this was
  // made of, or that of the slices.
  ::torch::optim::Optimizer& options() {
    return like_ != nullptr ? *like_ : *optimizer_;
  }

  // Returns what this rank keeps, between steps: the values ("value") and the
  // optimizer's state ("exp_avg", ...) of its slices. The pieces of all ranks
  // are the whole model, once; with reducer.hybrid those of each replica are.
  // The memory is valid until the next step or Load; what is on a GPU is copied
  // from there, and stays as long as its piece. UNIMPLEMENTED for a
  // maker's optimizer of another kind than Create shards; FAILED_PRECONDITION
  // after a step that libtorch has cut short.
  absl::StatusOr<std::vector<KeptPiece>> Pieces() const;

  // Returns how often the own slices were stepped. A Step that has failed and
  // still counts was cut short while the slices were copied to all ranks: of
  // the parameters, the own slices are those of after the step, and the others
  // undefined.
  int64_t steps() const { return steps_; }

  // Fills in what this rank keeps, and copies the values to all ranks; between
  // steps. The pieces may be those of any number of ranks. Fails with
  // FAILED_PRECONDITION for lack of a state that the optimizer needs, and with
  // the reader's errors: the contents are then undefined.
  absl::Status Load(PieceReader& reader);

 private:
  // The own slice's part of a parameter.
  struct Part {
    int bucket = 0;
    SlicePart place;
    ::torch::Tensor value;
  };

  explicit ShardedOptimizer(DistributedDataParallel& ddp) : ddp_(ddp) {}
  absl::Status Begin(const OptimizerMaker& make,
                     const ShardedOptimizerOptions& options);
  // Makes memory for the parameters, with their values.
  absl::Status MakeWholes(const ShardLayout& layout);
  // With offload, of parameters on a GPU: copies the own slices to the host.
  absl::Status MakeOffload(const ShardLayout& layout, DeviceRuntime* runtime);
  // Makes the parts' tensors, where the optimizer is to step them.
  absl::Status MakeParts(const ShardLayout& layout);
  // Returns the parts by group, and notes which parameters are in one.
  absl::StatusOr<std::vector<::torch::optim::OptimizerParamGroup>> GroupParts(
      const ShardedOptimizerOptions& options);
  absl::Status MakeOptimizer(
      const OptimizerMaker& make,
      std::vector<::torch::optim::OptimizerParamGroup> groups);
  // Makes the module's parameters views. Throws what libtorch throws.
  void MoveParameters();

  absl::Status StepSlices();
  absl::Status StepOffloaded();
  // Counts the step for the parameters that take it.
  void CountStep();
  absl::Span<Part> PartsOf(int bucket);
  // Lets the parts of a bucket have the averages as gradients, or none. Throw
  // what libtorch throws.
  void GiveGradients(int bucket, const Span& averages);
  void TakeGradients(int bucket);
  // Returns the parameters' counts of changes.
  std::vector<int64_t> Versions() const;
  void NoteVersions();
  // Takes over the options of the optimizer that this one was made of.
  void FollowOptions();
  // Copies all ranks' slices of the parameters to all.
  absl::Status Gather();
  absl::StatusOr<TensorPiece> PieceOf(const Part& part,
                                      const std::string& kind) const;
  // What is read to the CPU's memory for tensors on a GPU.
  struct Landed {
    ::torch::Tensor to;
    ::torch::Tensor read;
  };
  absl::Status LoadPart(PieceReader& reader, const Part& part,
                        std::vector<Landed>* landed);

  DistributedDataParallel& ddp_;
  int64_t layout_version_ = 0;
  std::vector<::torch::Tensor> parameters_;
  // The parameters' values, by bucket, with padding behind them.
  std::vector<std::shared_ptr<BufferOwner>> wholes_;
  // The own slices' values on the host; null: without offload, or the wholes
  // are there.
  std::unique_ptr<OffloadedSlices> offload_;
  std::vector<int64_t> versions_;  // with it, after the last gather
  std::vector<Part> parts_;        // by bucket
  std::vector<size_t> first_part_;
  std::unique_ptr<::torch::optim::Optimizer> optimizer_;
  // What optimizer_ was made of; null: by a maker.
  ::torch::optim::Optimizer* like_ = nullptr;
  // Whether each parameter is in a group; the others have no state.
  std::vector<bool> grouped_;
  // How many steps each parameter has taken.
  std::vector<int64_t> taken_;
  int64_t steps_ = 0;
  bool in_step_ = false;  // of the own slices: they are undefined
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_SHARD_SHARDED_OPTIMIZER_H_
