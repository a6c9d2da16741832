#ifndef COXSWAIN_SCHEDULE_PIPELINE_STAGE_CUT_H_
#define COXSWAIN_SCHEDULE_PIPELINE_STAGE_CUT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::pipeline {

// Which layers of a model each stage of a pipeline has: consecutive ones, at
// least one, and each layer in one stage. Layers and stages count from 0.
// Immutable.
class StageCut {
 public:
  // As many layers in each stage as in the others, or one more in the first
  // ones. INVALID_ARGUMENT: there are fewer layers than stages.
  static absl::StatusOr<StageCut> Even(int layers, int stages);
  // By what each layer weighs, such as its parameters: the heaviest stage is as
  // light as it can be. Fails likewise.
  static absl::StatusOr<StageCut> ByWeight(const std::vector<int64_t>& weights,
                                           int stages);
  // Reads "0-3,4,5-7", the first and the last layer of each stage.
  // INVALID_ARGUMENT names what is wrong with it.
  static absl::StatusOr<StageCut> Parse(absl::string_view text, int layers,
                                        int stages);
  // Returns what Parse reads, in its one form.
  std::string ToString() const;

  int stages() const { return static_cast<int>(begins_.size()); }
  int begin(int stage) const { return begins_[static_cast<size_t>(stage)]; }
  int end(int stage) const {
    return stage + 1 < stages() ? begin(stage + 1) : layers_;
  }
  int StageOf(int layer) const;

 private:
  StageCut(std::vector<int> begins, int layers)
      : begins_(std::move(begins)), layers_(layers) {}

  std::vector<int> begins_;
  int layers_;
};

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_STAGE_CUT_H_
