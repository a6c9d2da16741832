#ifndef COXSWAIN_TRAIN_TORCH_TRAIN_H_
#define COXSWAIN_TRAIN_TORCH_TRAIN_H_

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/accumulate/accumulator.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/elastic/recovery.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "train/training.h"

namespace coxswain::torch {

// How Train trains. Everything may stay as it is. Each has an initial value, so
// that {.hook = "bf16"} draws no warning (C++20, and GCC and Clang before).
struct TrainOptions {
  // What compresses the gradients on their way: docs/hooks.md.
  std::string hook = "allreduce";
  // The schedule that the program asks for (accumulation_steps and terms), and
  // all else of the wrapper. Train fills in what follows from the job's plan:
  // plan, gate, make_hook and make_averager.
  DistributedDataParallelOptions ddp = {};
  // Which coordinator, job and worker; unset: what `coxswain run` has put into
  // the environment.
  std::optional<SessionOptions> session = std::nullopt;
  // What else must be the same on all ranks, such as a seed or a learning rate:
  // compared when they join. Not with `elastic`.
  std::map<std::string, std::string> settings = {};
  // Goes on when workers are lost or added, without a restart: docs/elastic.md.
  bool elastic = false;
  // With `elastic` and ddp.terms.checksum_every: when ranks whose bits differ
  // take steps again, to find which of them was wrong. Not with `zero`.
  ReplayMode replay = ReplayMode::kTwoRanks;
  // ZeRO: shards the optimizer's state over the ranks (1), and the gradients
  // (2): docs/parallelism.md. The optimizer is SGD, Adam, AdamW, RMSprop or
  // Adagrad, and has taken no step. With `elastic`, what is lost of the state
  // with a rank comes from the newest checkpoint: set `resume` to "newest", and
  // ddp.terms.checkpoint_every.
  int zero = 0;
  // With `zero`, of a module on a GPU: the optimizer's state is in the host's
  // memory. See DistributedDataParallelOptions::offload.
  bool offload = false;
  // Which checkpoints are kept. They are written when the plan
  // (ddp.terms.checkpoint_every), an operator or SIGTERM asks for it.
  CheckpointRetention retention = {};
  // The id of a checkpoint to go on from, or "newest", which may be none. One
  // that was written with zero is gone on from with zero, and one without,
  // without, on any number of ranks; docs/parallelism.md has what hybrid
  // sharding needs.
  std::string resume = {};
  // How long the end of training waits for a checkpoint that is being written.
  // A launcher that stops its workers kills them after 10 s.
  absl::Duration save_timeout = absl::Seconds(8);
  // SIGTERM lets the step end, saves a checkpoint and ends the training of all
  // ranks (with `elastic`: of this one).
  bool stop_on_sigterm = true;
};

// A training that is under way, as the body of Train sees it.
//
// Threading: the thread that has called Train.
class Training : public TrainingBase {
 public:
  // Returns the mean loss of this rank's next micro-batch.
  using Loss = std::function<::torch::Tensor()>;

  // Trains on one micro-batch: calls `loss`, scales what it returns by the
  // job's plan, runs the backward pass and, at the end of a window,
  // exchanges the gradients and takes the optimizer's step, unless all ranks
  // have decided to skip it.
  //
  // The error, if any, is the job's: return it from the body. INTERNAL if
  // `loss` throws, INVALID_ARGUMENT if it returns more than one number.
  absl::Status Step(const Loss& loss, const Accumulator::Begin& begin = {});

  // Returns the loss of the last Step, not scaled.
  const ::torch::Tensor& loss() const { return loss_; }

  virtual DistributedDataParallel& ddp() = 0;
  const schedule::Plan& plan() override { return ddp().plan(); }

 protected:
  Training() = default;

 private:
  bool ended() override { return ddp().ended(); }
  virtual absl::StatusOr<MicroBatch> Accumulate(
      const Accumulator::Begin& begin) = 0;
  virtual absl::Status Backward(const ::torch::Tensor& loss,
                                const MicroBatch& micro) = 0;

  ::torch::Tensor loss_;
};

// Trains `module` with the other ranks of a job: joins it, follows its plan,
// calls `body`, and leaves it.
//
//   absl::Status status = coxswain::torch::Train(
//       {.hook = "powersgd(start_step=10)"}, model, optimizer,
//       [&](coxswain::torch::Training& training) {
//         while (training.step() < 100 && training.going()) {
//           absl::Status step = training.Step([&] { return Loss(model); });
//           if (!step.ok()) return step;
//         }
//         return absl::OkStatus();
//       });
//
// The body is called once; with options.elastic in each generation of the
// members, and goes on from step() and the counters that it finds.
//
// Returns the body's error, or that of joining, with what the coordinator knows
// of its reason: a rank that was lost, or ranks whose steps differ. INTERNAL if
// the body throws. Sends an error to the other ranks before it returns.
absl::Status Train(const TrainOptions& options,
                   std::shared_ptr<::torch::nn::Module> module,
                   ::torch::optim::Optimizer& optimizer,
                   const std::function<absl::Status(Training&)>& body);

}  // namespace coxswain::torch

#endif  // COXSWAIN_TRAIN_TORCH_TRAIN_H_
