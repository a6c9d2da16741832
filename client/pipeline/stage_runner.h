#ifndef COXSWAIN_CLIENT_PIPELINE_STAGE_RUNNER_H_
#define COXSWAIN_CLIENT_PIPELINE_STAGE_RUNNER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/device/tensor.h"

namespace coxswain {

// A tensor that goes from one stage of a pipeline to the next, or the gradient
// that comes back: contiguous, row-major, in memory of the CPU, which may be
// null where there are no elements. Of a tensor without a gradient (a mask of
// integers) the gradient is absent.
struct Activation {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> dims;
  std::shared_ptr<void> memory;
  bool absent = false;

  int64_t elements() const {
    int64_t product = absent ? 0 : 1;
    for (const int64_t dim : dims) product *= dim;
    return product;
  }
  int64_t bytes() const {
    return elements() * static_cast<int64_t>(SizeOf(dtype));
  }
};
using Activations = std::vector<Activation>;

// What one stage of a pipeline computes; implemented by those who have a
// framework. PipelineExecutor calls it, on the thread of its Run and in the
// order of the schedule. Micro-batches count from 0 in each step.
//
// The memory of what a stage passes on is read until Run returns: it is not
// written to before. An error ends the step on all ranks; the executor puts the
// stage and the action before its message. What it still holds of the step is
// then to be dropped by Reset.
class StageRunner {
 public:
  virtual ~StageRunner() = default;

  // A step of so many micro-batches begins. `halves`: the schedule has backward
  // passes of this stage in halves, and may have whole ones, too.
  virtual absl::Status Begin(int micro_batches, bool halves);

  // Computes the outputs for the next stage from the inputs, which the first
  // stage has by itself: it gets none. The last stage computes the loss, and
  // returns none. Keeps what the micro-batch's backward pass needs.
  virtual absl::Status Forward(int micro_batch, Activations inputs,
                               Activations* outputs) = 0;

  // Computes the gradients of the inputs from those of the outputs, one for
  // each, and adds up those of the parameters. The last stage gets none, the
  // first returns none.
  virtual absl::Status Backward(int micro_batch, Activations output_gradients,
                                Activations* input_gradients) = 0;

  // The same in two halves, where the schedule has it so (zb_h1): the gradients
  // of the inputs first, those of the parameters later. Whether it can; if not,
  // such a schedule is refused.
  virtual bool splits_backward() const { return false; }
  virtual absl::Status BackwardInput(int micro_batch,
                                     Activations output_gradients,
                                     Activations* input_gradients);
  virtual absl::Status BackwardWeight(int micro_batch);

  // Exchanges the stage's gradients among the ranks that hold the same stage,
  // where the schedule has it (REDUCE_GRAD).
  virtual absl::Status ReduceGradients();

  // Drops what is kept of a step that has failed.
  virtual void Reset() = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PIPELINE_STAGE_RUNNER_H_
