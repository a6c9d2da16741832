#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_TRAINER_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/data/sampler.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_checkpoint.h"
#include "examples/fashion_mnist/dataset.h"
#include "examples/fashion_mnist/events.h"
#include "examples/fashion_mnist/model.h"

namespace coxswain::examples {

struct TrainerOptions {
  std::string hook = "allreduce";
  int accumulation_steps = 1;
  int epochs = 2;
  int batch = 64;  // images per micro-batch and rank
  double learning_rate = 0.05;
  uint64_t seed = 1;
  std::string device = "auto";  // see ChooseDevice
  std::string data = "/usr/share/datasets/fashion-mnist";
  int64_t checkpoint_every = 0;  // steps; 0: only on request
  CheckpointRetention retention;
  // Where training goes on from: a checkpoint's id, or "newest", which is the
  // beginning where the job has none yet. Empty: from the beginning.
  std::string resume;
  // Called on rank 0 only, several times a second.
  std::function<void(const Event&)> on_event = [](const Event&) {};
};

// Trains the network on this worker's share of the images, as one rank of the
// job that the environment names (see SessionOptions::FromEnvironment). One
// thread only.
class Trainer {
 public:
  // Reads the data, joins the job and makes the model the same on all ranks.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(
      const TrainerOptions& options);

  // Trains, tests, and leaves the job. The error of a lost peer names it.
  absl::Status Run();

 private:
  // Since the last event.
  struct Interval {
    absl::Time start;
    int64_t steps = 0;
    int64_t images = 0;  // of this rank
    int64_t payload = 0;
    double loss = 0;
  };

  Trainer() = default;
  // Moves the model, and logs it.
  absl::Status MoveToDevice(SessionOptions* options);
  // With its tensors where the model is.
  Batch Here(Batch batch) const;
  absl::Status Connect();
  absl::Status StartSampler(const SamplerState& start);
  absl::Status Resume();
  // A signal, once: all save their state, and stop.
  void HeedSignal();
  absl::Status SaveIfAsked();
  absl::Status TrainAndTest();
  // Returns whether all ranks have agreed to stop, or have taken all steps of
  // the plan.
  bool Over() const;
  absl::Status TrainEpoch();
  absl::Status TrainMicroBatch(const Batch& batch);
  // Before what may exchange gradients; TakeStep counts what they sent.
  void BeginExchange();
  absl::Status TakeStep();
  // Returns the steps taken, and those to come if the plan stays as it is.
  int64_t steps_total() const;
  void CountStep(double loss, int64_t payload, bool compressed);
  absl::StatusOr<double> TestAccuracy();
  ResultEvent Result(double accuracy) const;
  int64_t gradient_bytes_fp32() const;

  TrainerOptions options_;
  Dataset train_;
  Dataset test_;
  std::shared_ptr<Network> network_;
  ::torch::Device device_ = ::torch::kCPU;
  std::unique_ptr<Session> session_;
  std::shared_ptr<ProcessGroup> world_;
  std::unique_ptr<torch::DistributedDataParallel> ddp_;
  std::unique_ptr<::torch::optim::Optimizer> optimizer_;
  std::unique_ptr<torch::ModuleCheckpoint> checkpoint_;
  std::unique_ptr<ShardedSampler> sampler_;
  bool signal_heeded_ = false;

  int64_t batches_left_ = 0;  // of all epochs
  int64_t images_ = 0;        // of this rank, so far
  double loss_ = 0;           // of the last micro-batch
  bool compressing_ = false;
  int64_t payload_before_ = 0;

  int64_t steps_ = 0;
  int64_t compressed_steps_ = 0;
  int64_t compressed_payload_ = 0;
  absl::Duration wall_;
  Interval interval_;
};

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_TRAINER_H_
