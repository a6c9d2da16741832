#ifndef COXSWAIN_EXAMPLES_GPT_TRAINER_H_
#define COXSWAIN_EXAMPLES_GPT_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "client/torch/module_checkpoint.h"
#include "client/torch/pipeline/pipeline.h"
#include "examples/gpt/meter.h"
#include "examples/gpt/model.h"
#include "examples/gpt/result.h"
#include "examples/gpt/text.h"
#include "examples/progress/step_event.h"
#include "torch/optim/adamw.h"

namespace coxswain::examples::gpt {

struct TrainerOptions {
  ModelOptions model;
  std::string text = kPackagedText;
  int64_t steps = 100;
  int micro_batches = 8;  // of a step, of all data ranks together
  int64_t texts = 4;      // pieces of the text in a micro-batch
  int held_out = 16;      // micro-batches of the evaluation at the end
  double learning_rate = 3e-3;
  double max_norm = 1;  // of the gradients; 0: they are not clipped
  std::string hook = "allreduce";
  std::string schedule = "1f1b";  // of the pipeline
  std::string stages;             // PipelineOptions::stages
  int zero = 0;
  bool sequence = false;
  int64_t checkpoint_every = 0;  // steps; 0: only on request
  // A checkpoint's id, or "newest": the beginning, where there is none.
  std::string resume;
  // On rank 0.
  std::function<void(const StepEvent&)> on_step = [](const StepEvent&) {};
  std::function<void(const Result&)> on_result = [](const Result&) {};
};

// Trains a GPT on a text as one rank of the job that the environment names (see
// SessionOptions::FromEnvironment), which may have any mesh: the ranks read the
// same micro-batches on each, so that the losses are the same. One thread only.
class Trainer {
 public:
  // Reads the text, joins the job, and makes this rank's part of the model.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const TrainerOptions& options);

  // Trains, evaluates, and leaves the job.
  absl::Status Run();

 private:
  explicit Trainer(const TrainerOptions& options) : options_(options) {}
  absl::Status Connect();
  absl::StatusOr<JobManifest> Describe(const SessionOptions& where);
  absl::Status Resume();
  absl::Status Train();
  absl::Status TakeStep();
  absl::Status Report();
  // Returns the mean loss of the held-out text, the same on all ranks.
  absl::StatusOr<double> Evaluate();
  absl::StatusOr<Result> Finish();

  enum class Part { kTrained, kHeldOut };
  // Returns this rank's micro-batches, of those of a step, or of an evaluation,
  // of all data ranks: `count` from the `first` on.
  std::vector<torch::PipelineBatch> MakeBatches(Part part, int64_t first,
                                                int count) const;

  TrainerOptions options_;
  std::optional<Text> text_;
  torch::PipelineOptions pipeline_options_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<torch::Pipeline> pipeline_;
  std::unique_ptr<::torch::optim::AdamW> optimizer_;
  std::unique_ptr<torch::ModuleCheckpoint> checkpoint_;
  std::unique_ptr<Meter> meter_;
  int64_t step_ = 0;   // windows trained, also before a resume
  int64_t taken_ = 0;  // micro-batches of all data ranks
};

}  // namespace coxswain::examples::gpt

#endif  // COXSWAIN_EXAMPLES_GPT_TRAINER_H_
