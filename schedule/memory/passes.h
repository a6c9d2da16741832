#ifndef COXSWAIN_SCHEDULE_MEMORY_PASSES_H_
#define COXSWAIN_SCHEDULE_MEMORY_PASSES_H_

#include <cstddef>
#include <cstdint>

#include "schedule/memory/rank_model.h"
#include "schedule/pipeline/stage_cut.h"

namespace coxswain::memory {

// What changes while a window runs.
struct Moment {
  int64_t activations = 0;
  int64_t received = 0;
  int64_t working = 0;

  int64_t sum() const { return activations + received + working; }
};

// A rank's passes, one after the other, in the order of its list: that of the
// schedule does not depend on time. Model and cut outlive it.
class Passes {
 public:
  // `copies`: each gradient has memory of its own while it is added to another.
  Passes(const RankModel& model, const pipeline::StageCut& cut, bool copies)
      : model_(model), cut_(cut), copies_(copies) {}

  void Begin(const Moment& begin) { now_ = peak_ = begin; }
  // `received`: its input came from another rank.
  void Forward(int stage, bool received);
  // A half that keeps the gradients of its layers' outputs for the other one.
  void BackwardInput(int stage);
  // `is_half`: the other one of these.
  void Backward(int stage, bool received, bool is_half);
  // Returns the moment of the most.
  const Moment& peak() const { return peak_; }

 private:
  const RankLayer& LayerOf(int i) const {
    return model_.layers[static_cast<size_t>(i)];
  }
  int64_t InputOf(int stage) const;
  void Look(int64_t working);

  const RankModel& model_;
  const pipeline::StageCut& cut_;
  const bool copies_;
  Moment now_;
  Moment peak_;
};

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_PASSES_H_
