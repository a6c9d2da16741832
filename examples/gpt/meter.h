#ifndef COXSWAIN_EXAMPLES_GPT_METER_H_
#define COXSWAIN_EXAMPLES_GPT_METER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/group/process_group.h"
#include "client/pipeline/place_book.h"
#include "client/session/session.h"
#include "client/torch/pipeline/pipeline.h"
#include "examples/gpt/result.h"
#include "examples/progress/step_event.h"

namespace coxswain::examples::gpt {

// Measures what the ranks of a training do, and adds it up over them. All ranks
// call it alike; one thread.
class Meter {
 public:
  // Blocks until all ranks have called it. The session outlives it.
  static absl::StatusOr<std::unique_ptr<Meter>> Create(Session& session,
                                                       int64_t steps);

  // For PipelineExecutorOptions::on_step: what one step's actions took.
  void AddActions(const std::vector<TimedAction>& actions);

  // Around each step of the pipeline: step `step` of the training, from 1, of
  // so many tokens of all ranks.
  void BeginStep(const torch::Pipeline& pipeline);
  void EndStep(const torch::Pipeline& pipeline,
               const torch::PipelineResult& result, int64_t step,
               int64_t tokens);

  // Returns the mean of the losses, of ranks that have different ones.
  absl::StatusOr<double> MeanLoss(const torch::Pipeline& pipeline,
                                  const std::vector<double>& losses);

  // Returns what has been since the last call, at `step` of the steps.
  absl::StatusOr<StepEvent> Interval(int64_t step);
  // Fills in what was measured of the whole training.
  absl::Status Fill(const torch::Pipeline& pipeline, Result* result);

 private:
  // Of this rank.
  struct Losses {
    double sum = 0;
    double count = 0;
    void Add(const torch::Pipeline& pipeline,
             const std::vector<double>& losses);
  };

  Meter(std::shared_ptr<ProcessGroup> ranks, int64_t steps)
      : ranks_(std::move(ranks)), all_steps_(steps) {}
  // Of all ranks.
  absl::StatusOr<std::vector<double>> Reduce(std::vector<double> numbers,
                                             ReduceOp op) const;
  absl::StatusOr<double> MeanOf(const Losses& losses) const;

  const std::shared_ptr<ProcessGroup> ranks_;  // all
  const int64_t all_steps_;
  bool in_step_ = false;
  int64_t steps_ = 0;  // taken here
  torch::AxisBytes before_;
  torch::AxisBytes sent_;
  // After the first step, in which libraries get ready.
  absl::Time begin_;
  double tokens_ = 0;
  double passes_ = 0;  // seconds in passes
  double span_ = 0;  // seconds from a step's first action to its last one's end
  Losses last_tenth_;
  // Since the last event.
  struct {
    absl::Time begin;
    int64_t steps = 0;
    double tokens = 0;
    double bytes = 0;
    Losses losses;
  } interval_;
};

}  // namespace coxswain::examples::gpt

#endif  // COXSWAIN_EXAMPLES_GPT_METER_H_
