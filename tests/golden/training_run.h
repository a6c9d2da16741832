#ifndef COXSWAIN_TESTS_GOLDEN_TRAINING_RUN_H_
#define COXSWAIN_TESTS_GOLDEN_TRAINING_RUN_H_

#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "tests/golden/golden_file.h"
#include "tests/golden/training_net.h"

namespace coxswain {

// The settings in a golden file. A name that it lacks, or text that is no
// number, throws, which ends the test.
class GoldenSettings {
 public:
  explicit GoldenSettings(const GoldenFile& file) : metadata_(file.metadata) {}

  const std::string& Text(const std::string& name) const {
    return metadata_.at(name);
  }
  double Number(const std::string& name) const;
  int64_t Count(const std::string& name) const;
  std::vector<int64_t> Counts(const std::string& name) const;  // "2+1+3"

 private:
  std::map<std::string, std::string> metadata_;
};

// Of our options, those that must not change a result.
struct TrainingWay {
  bool views = false;  // gradient_as_bucket_view
  bool static_graph = false;
  bool overlapped_optimizer = false;
  bool reducer_clips = false;  // not torch::nn::utils::clip_grad_norm_
};

// One rank that trains with the settings of a golden file.
class TrainingRun {
 public:
  TrainingRun(const GoldenSettings& settings, const TrainingWay& way, int rank)
      : settings_(settings), way_(way), rank_(rank) {}

  absl::Status Run(Communicator* communicator);

  // What came of it. All parameters, by the number of steps before:
  std::map<int64_t, std::vector<double>> snapshots;
  std::vector<std::vector<double>> losses;  // by step and pass
  std::vector<double> norms;                // by step, where they are clipped
  int64_t exchanges() const { return ddp_->hook().step(); }
  std::string buckets() const;  // at the end, in PyTorch's form

 private:
  bool branches() const { return settings_.Count("branches") != 0; }
  bool mean() const { return settings_.Count("mean") != 0; }
  bool uneven() const;
  ::torch::optim::SGDOptions Sgd() const;
  torch::DistributedDataParallelOptions Options() const;

  absl::Status Prepare(Communicator* communicator);
  absl::Status Step(int64_t step);
  absl::Status Pass(int64_t step, int64_t micro, int64_t passes);
  void Clip();
  void Apply();

  GoldenSettings settings_;
  TrainingWay way_;
  int rank_;
  std::shared_ptr<TrainingNet> net_;
  std::unique_ptr<torch::DistributedDataParallel> ddp_;
  // Null if each parameter has one of its own.
  std::unique_ptr<::torch::optim::SGD> optimizer_;
  int64_t steps_ = 0;
};

// Sets buckets as small as those of the file.
void SetBucketBytes(const GoldenSettings& settings,
                    torch::DistributedDataParallelOptions* options);

// Runs `run` on ranks that are connected over tcp, each in a thread of its
// own; an error fails the test.
void OnRanks(int64_t ranks,
             const std::function<absl::Status(int rank, Communicator*)>& run);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_GOLDEN_TRAINING_RUN_H_
