#ifndef COXSWAIN_CLIENT_TORCH_LOSS_SCALE_H_
#define COXSWAIN_CLIENT_TORCH_LOSS_SCALE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain::torch {

// How a loss scale goes on. With powers of two, which these are, a scaled
// gradient that is in range has the same bits as one without a scale.
struct LossScaling {
  double initial = 65536;
  double growth = 2;     // after `growth_every` steps in a row were committed
  double backoff = 0.5;  // after a step was skipped
  int64_t growth_every = 2000;
  double least = 1;       // it does not become smaller,
  double most = 1 << 24;  // nor larger
};

// A dynamic loss scale, by which losses are multiplied so that small gradients
// of 16-bit passes do not vanish. It follows from the ranks' decisions alone,
// so that all ranks have the same one without an exchange: a gradient that
// overflows on any of them makes all skip the step, by their votes
// (skip_non_finite), and each halves its scale. A Pipeline has its own
// (PipelineOptions::loss_scaling). Parameters have 32 bits or more, as with
// passes that convert them: gradients are divided in their own type, in which
// small ones of 16 bits would vanish after all. With a DistributedDataParallel:
//
//   options.skip_non_finite = true;
//   options.terms.commit_vote = true;
//   ...
//   COXSWAIN_ASSIGN_OR_RETURN(LossScale scale, LossScale::Create({}));
//   for (each batch) {
//     const MicroBatch micro = ddp->Accumulate();
//     COXSWAIN_RETURN_IF_ERROR(ddp->Backward(loss * scale.scale(), micro));
//     if (!micro.sync) continue;
//     COXSWAIN_RETURN_IF_ERROR(ddp->StepOptimizer(optimizer).status());
//     scale.OnStep(!ddp->skipped());
//     COXSWAIN_RETURN_IF_ERROR(ddp->SetGradientScale(scale.scale()));
//   }
//
// and once before the loop, SetGradientScale(scale.scale()). Threading: one
// thread.
class LossScale {
 public:
  // Fails with INVALID_ARGUMENT, naming what is out of range.
  static absl::StatusOr<LossScale> Create(const LossScaling& scaling);

  // Returns the scale of the next window's losses.
  double scale() const { return scale_; }
  // After each step that all ranks have decided on, but for one for which none
  // had data.
  void OnStep(bool committed);

  // Returns the scale, and how far it is from growing, in words.
  std::string Save() const;
  // Goes on from there, within this one's bounds. Fails with INVALID_ARGUMENT,
  // and changes nothing, if Save has not returned this.
  absl::Status Load(absl::string_view saved);

 private:
  explicit LossScale(const LossScaling& scaling);

  LossScaling scaling_;
  double scale_;
  int64_t committed_ = 0;  // in a row, since it was changed
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_LOSS_SCALE_H_
