#ifndef COXSWAIN_TRAIN_TRAIN_H_
#define COXSWAIN_TRAIN_TRAIN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/accumulate/accumulator.h"
#include "client/checkpoint/checkpoint_client.h"
#include "client/device/tensor.h"
#include "client/elastic/recovery.h"
#include "client/reduce/bucket_layout.h"
#include "client/session/session.h"
#include "schedule/terms.h"
#include "schedule/ticket.h"
#include "train/training.h"

// One call that trains, for any framework that hands over pointers. For
// libtorch there is train/torch/train.h.

namespace coxswain {

// A parameter that a program trains, and its gradient: row-major, in the CPU's
// memory, where both stay until Train has returned.
struct TrainedParameter {
  std::string name;  // unique
  std::vector<int64_t> shape = {};
  void* value = nullptr;
  void* gradient = nullptr;
  // Of both: float32, float64, float16 or bfloat16.
  DType dtype = DType::kFloat32;
};

// A program's optimizer.
struct TrainedOptimizer {
  // Takes a step: changes the values by the gradients, which are the averages
  // over the micro-batches of all ranks then.
  std::function<absl::Status()> step = nullptr;
  // What it has learned, such as momenta, as bytes for checkpoints and, with
  // TrainOptions::elastic, for ranks that are behind or new; and back. Equal
  // bytes on all ranks after the same step. Null: nothing. Both or none.
  std::function<absl::StatusOr<std::string>()> save = nullptr;
  std::function<absl::Status(absl::string_view)> load = nullptr;
};

// How Train trains. Everything may stay as it is. Each has an initial value, so
// that {.hook = "bf16"} draws no warning (C++20, and GCC and Clang before).
struct TrainOptions {
  // What compresses the gradients on their way: docs/hooks.md.
  std::string hook = "allreduce";
  // The schedule that the program asks for: docs/schedule.md. The job's plan
  // counts.
  int accumulation_steps = 1;
  schedule::Terms terms = {};
  // Which coordinator, job and worker; unset: what `coxswain run` has put into
  // the environment.
  std::optional<SessionOptions> session = std::nullopt;
  // What else must be the same on all ranks, such as a seed or a learning rate:
  // compared when they join.
  std::map<std::string, std::string> settings = {};
  // How gradients are divided into buckets.
  BucketPlanOptions buckets = {};
  // Above 0: averages whose norm is larger are scaled down to it.
  double max_norm = 0;
  // All ranks skip a step whose average is infinite or not a number.
  bool skip_non_finite = false;
  // Goes on when workers are lost or added, without a restart: docs/elastic.md.
  // Not with hooks that work with an averager.
  bool elastic = false;
  // With `elastic` and terms.checksum_every: when ranks whose bits differ take
  // steps again, to find which of them was wrong.
  ReplayMode replay = ReplayMode::kTwoRanks;
  // Which checkpoints are kept. They are written when the plan
  // (terms.checkpoint_every), an operator or SIGTERM asks for it.
  CheckpointRetention retention = {};
  // The id of a checkpoint to go on from, or "newest", which may be none. With
  // `elastic`, workers that have a step already go on from that.
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
  // Writes the gradients of the mean loss of this rank's next micro-batch into
  // the parameters' gradients, over what stands there, and returns that loss,
  // which is for loss() alone.
  using Gradients = std::function<absl::StatusOr<double>()>;

  // Trains on one micro-batch: calls `gradients`, scales what it has written by
  // the job's plan and sums it up; at the end of a window, exchanges the sums
  // and takes the optimizer's step, unless all ranks have decided to skip it.
  //
  // The error, if any, is the job's: return it from the body. INTERNAL if
  // `gradients` throws.
  absl::Status Step(const Gradients& gradients,
                    const Accumulator::Begin& begin = {});

  // Within `gradients`, and optional: the gradient of this parameter, by its
  // place in the list that Train was given, stands. Its exchange may begin
  // while others are computed. Once in a micro-batch; the gradient is not to be
  // written to afterwards.
  absl::Status GradientReady(int parameter);

  // Returns whether the last Step took the optimizer's step. False in the
  // middle of a window, and where the step was skipped: decision() has the
  // reason.
  virtual bool taken() const = 0;
  virtual const schedule::Decision& decision() const = 0;
  // Returns the loss of the last Step, not scaled.
  double loss() const { return loss_; }

 protected:
  Training() = default;

 private:
  virtual absl::StatusOr<MicroBatch> BeginMicroBatch(
      const Accumulator::Begin& begin) = 0;
  virtual absl::Status TakeGradient(int parameter) = 0;
  // All that were not taken; and exchanges them where the window ends.
  virtual absl::Status TakeGradients() = 0;

  double loss_ = 0;
};

// Trains `parameters` with the other ranks of a job: joins it, copies rank 0's
// values to all ranks, follows the job's plan, calls `body`, and leaves it.
//
//   absl::Status status = coxswain::Train(
//       {.hook = "powersgd(start_step=10)"},
//       {{"weight", {10, 64}, weight.data(), gradient.data()}},
//       {[&] { return Descend(gradient, &weight); }},
//       [&](coxswain::Training& training) {
//         while (training.step() < 100 && training.going()) {
//           absl::Status step = training.Step(
//               [&] { return Backward(weight, NextBatch(), &gradient); });
//           if (!step.ok()) return step;
//         }
//         return absl::OkStatus();
//       });
//
// The body is called once, and training ends where a worker is lost; with
// options.elastic it is called in each generation of the members, and goes on
// from step(), counters, blobs, values and optimizer as it finds them, which
// are those of the last step that was committed, on all ranks. What it has
// counted within a step that was not is undone.
//
// Returns the body's error, or that of joining, with what the coordinator knows
// of its reason: a rank that was lost, or ranks whose steps differ. INTERNAL if
// the body throws; INVALID_ARGUMENT, before it joins, if parameters, optimizer
// or options make no sense. Sends an error to the other ranks before it
// returns.
absl::Status Train(const TrainOptions& options,
                   const std::vector<TrainedParameter>& parameters,
                   const TrainedOptimizer& optimizer,
                   const std::function<absl::Status(Training&)>& body);

}  // namespace coxswain

#endif  // COXSWAIN_TRAIN_TRAIN_H_
