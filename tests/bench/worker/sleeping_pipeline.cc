#include "tests/bench/worker/sleeping_pipeline.h"

#include <utility>

#include "base/cancel_signal.h"
#include "base/status_macros.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::bench {

class SleepingPipeline::Stage : public StageRunner {
 public:
  Stage(absl::Duration forward, absl::Duration backward, int64_t elements)
      : forward_(forward), backward_(backward), elements_(elements) {}

  absl::Status Forward(int, Activations, Activations* outputs) override {
    never_.WaitFor(forward_);
    *outputs = {Zeros()};
    return absl::OkStatus();
  }
  absl::Status Backward(int, Activations, Activations* gradients) override {
    never_.WaitFor(backward_);
    *gradients = {Zeros()};
    return absl::OkStatus();
  }
  void Reset() override {}

 private:
  Activation Zeros() const {
    auto memory =
        std::make_shared<std::vector<double>>(static_cast<size_t>(elements_));
    void* const data = memory->data();
    return {DType::kFloat64, {elements_}, std::shared_ptr<void>(memory, data)};
  }

  const absl::Duration forward_;
  const absl::Duration backward_;
  const int64_t elements_;
  CancelSignal never_;
};

absl::StatusOr<std::unique_ptr<SleepingPipeline>> SleepingPipeline::Create(
    Communicator* communicator, const std::string& schedule, int micro_batches,
    absl::Duration forward, absl::Duration backward, int64_t elements) {
  COXSWAIN_ASSIGN_OR_RETURN(
      auto whole,
      pipeline::MakeSchedule(schedule, communicator->size(), micro_batches));
  auto result = std::make_unique<SleepingPipeline>();
  const size_t chunks = whole.StagesOf(communicator->rank()).size();
  std::vector<StageRunner*> runners;
  for (size_t i = 0; i < chunks; ++i) {
    result->stages_.push_back(std::make_unique<Stage>(
        forward / static_cast<int64_t>(chunks),
        backward / static_cast<int64_t>(chunks), elements));
    runners.push_back(result->stages_.back().get());
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      result->executor_,
      PipelineExecutor::Create(std::move(whole), communicator,
                               std::move(runners), PipelineExecutorOptions()));
  return result;
}

}  // namespace coxswain::bench
