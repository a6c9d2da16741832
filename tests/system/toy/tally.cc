#include "tests/system/toy/tally.h"

#include <torch/utils.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "schedule/terms.h"

namespace coxswain::torch {
namespace {

constexpr char kPeek[] = "peek";

class Body {
 public:
  Body(const TallyTraining& training, Tally* tally, ElasticTraining* t)
      : training_(training), tally_(*tally), t_(*t) {}

  absl::Status Run(TallyResult* result) {
    COXSWAIN_RETURN_IF_ERROR(CheckPeeks());
    const absl::Status status = training_.epoch > 0 ? Epochs() : MicroBatches();
    result->step = t_.step();
    result->rows = t_.counter("rows");
    result->peeks = t_.counter("peeks");
    result->dropped.clear();
    for (absl::string_view row :
         absl::StrSplit(t_.blob("dropped"), ',', absl::SkipEmpty())) {
      result->dropped.insert(std::atoll(std::string(row).c_str()));
    }
    return status;
  }

 private:
  bool going() const { return t_.step() < training_.steps && t_.going(); }

  absl::Status CheckPeeks() {
    COXSWAIN_ASSIGN_OR_RETURN(const auto position,
                              t_.ddp().accumulator().Position());
    const auto found = position.find(kPeek);
    const int64_t windows = found == position.end() ? 0 : found->second;
    if (windows == t_.counter("peeks")) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("the stream is at window ", windows, ", and the program ",
                     "has counted ", t_.counter("peeks")));
  }

  absl::Status Epochs() {
    int64_t& done = t_.counter("in_epoch");
    while (going()) {
      if (done == training_.epoch) done = 0;
      COXSWAIN_RETURN_IF_ERROR(t_.ddp().BeginEpoch(training_.epoch - done));
      while (done < training_.epoch && going()) {
        COXSWAIN_RETURN_IF_ERROR(MicroBatchOf(&done));
      }
      if (done < training_.epoch) break;
      if (t_.ddp().plan().terms.tail == schedule::TailPolicy::kDrop) {
        for (const int64_t row : in_window_) {
          absl::StrAppend(&t_.blob("dropped"), row, ",");
        }
        in_window_.clear();
      }
      COXSWAIN_RETURN_IF_ERROR(t_.Flush().status());
    }
    return absl::OkStatus();
  }

  absl::Status MicroBatches() {
    int64_t done = 0;
    while (going()) COXSWAIN_RETURN_IF_ERROR(MicroBatchOf(&done));
    return absl::OkStatus();
  }

  absl::Status MicroBatchOf(int64_t* done) {
    // A count that does not advance would let this go on for ever.
    if (++begun_ > 1000 * training_.steps) {
      return absl::OutOfRangeError(absl::StrCat(
          "after ", begun_, " micro-batches, step() is ", t_.step()));
    }
    COXSWAIN_RETURN_IF_ERROR(Peek());
    const int64_t first = t_.counter("rows");
    const MicroBatch micro = t_.Accumulate();
    const double weight = micro.loss_scale * micro.window * t_.world_size();
    const ::torch::Tensor loss = tally_.Loss(first + t_.rank(), weight);
    if (training_.before_backward) {
      COXSWAIN_RETURN_IF_ERROR(training_.before_backward(t_));
    }
    COXSWAIN_RETURN_IF_ERROR(t_.Backward(loss));
    for (int i = 0; i < t_.world_size(); ++i) in_window_.push_back(first + i);
    t_.counter("rows") += t_.world_size();
    ++*done;
    if (!micro.sync) return absl::OkStatus();
    in_window_.clear();
    if (training_.before_step) {
      COXSWAIN_RETURN_IF_ERROR(training_.before_step(t_));
    }
    return t_.StepOptimizer().status();
  }

  absl::Status Peek() {
    const int64_t every = training_.peek_every;
    if (every == 0 || t_.step() % every != 0 || t_.step() == peeked_) {
      return absl::OkStatus();
    }
    // In the middle of a window of the stream "train" it would be undone.
    if (!in_window_.empty()) return absl::OkStatus();
    peeked_ = t_.step();
    COXSWAIN_ASSIGN_OR_RETURN(const MicroBatch peek,
                              t_.ddp().accumulator().BeginMicroBatch(kPeek));
    t_.counter("peeks") += peek.sync ? 1 : 0;
    return absl::OkStatus();
  }

  const TallyTraining& training_;
  Tally& tally_;
  ElasticTraining& t_;
  std::vector<int64_t> in_window_;  // rows used in the window under way
  int64_t peeked_ = -1;             // the step in which it was done last
  int64_t begun_ = 0;
};

}  // namespace

Tally::Tally(int64_t rows) {
  counts_ = register_parameter("counts", ::torch::zeros({rows}));
}

::torch::Tensor Tally::Loss(int64_t row, double weight) {
  return counts_.select(0, row) * weight;
}

absl::Status Tally::CheckUsedOnce(int64_t rows,
                                  const std::set<int64_t>& dropped) const {
  const ::torch::Tensor counts = counts_.detach();
  const float* const values = counts.data_ptr<float>();
  for (int64_t row = 0; row < counts.numel(); ++row) {
    const bool used = row < rows && dropped.count(row) == 0;
    if (values[row] == (used ? -1.0F : 0.0F)) continue;
    return absl::DataLossError(absl::StrCat("row ", row, " of ", rows,
                                            " was used ", -values[row],
                                            " times, not ", used ? 1 : 0));
  }
  return absl::OkStatus();
}

absl::Status TrainTally(const TallyTraining& training, Tally& tally,
                        ElasticTraining& t, TallyResult* result) {
  return Body(training, &tally, &t).Run(result);
}

}  // namespace coxswain::torch
