#ifndef COXSWAIN_TRAIN_TRAINING_H_
#define COXSWAIN_TRAIN_TRAINING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "schedule/plan.h"

namespace coxswain {

// What the bodies of all functions Train see of a training that is under way,
// whatever the framework: those of train/train.h and train/torch/train.h add
// how it steps.
//
// Threading: the thread that has called Train.
class TrainingBase {
 public:
  virtual ~TrainingBase() = default;
  TrainingBase(const TrainingBase&) = delete;
  TrainingBase& operator=(const TrainingBase&) = delete;

  // Ends an epoch: ends a window that the end of the data has cut short by
  // the plan's tail, and, where ranks may have unequal amounts of data
  // (uneven_data), takes part in the others' steps until all are out of data.
  // All ranks call it. Not needed where all have equally many micro-batches, in
  // whole windows.
  absl::Status EndEpoch();

  // Returns whether to go on. False: all ranks stop, the plan's max_steps are
  // done, or the members change; the body is then to return OK.
  virtual bool going() const = 0;
  // Returns whether another rank has run out of data and so ended the epoch for
  // all (uneven_data=end_at_first): EndEpoch is next.
  bool epoch_ended() { return !between_epochs_ && ended(); }
  // Returns how many windows have ended, skipped ones included; a training that
  // was resumed counts on.
  virtual int64_t step() const = 0;
  // Returns whether the last Step ended a window.
  bool stepped() const { return stepped_; }

  // A number or bytes that checkpoints hold, and that new ranks take over, 0
  // and empty at first, such as how much of the data was read. All ranks change
  // them alike: what is changed after Step belongs to that step.
  virtual int64_t& counter(const std::string& name) = 0;
  virtual std::string& blob(const std::string& name) = 0;

  virtual Session& session() = 0;
  // Returns the plan in force.
  virtual const schedule::Plan& plan() = 0;
  int rank() { return session().rank(); }
  int world_size() { return session().world_size(); }

 protected:
  TrainingBase() = default;

  // Around a micro-batch, by Step: the second takes the optimizer's step if a
  // window has ended with it.
  void BeginStep() { stepped_ = between_epochs_ = false; }
  absl::Status EndStep(bool sync);

 private:
  // The last exchange was one of no data, because a rank had run out of it.
  virtual bool ended() = 0;
  // Takes part in the others' steps until all are out of data, if the plan
  // allows unequal amounts of it.
  absl::Status AwaitOthers();
  // True: a window was ended, and TakeStep is next.
  virtual absl::StatusOr<bool> Flush() = 0;
  virtual absl::StatusOr<bool> StepWithoutData() = 0;
  // The window's optimizer step, and what follows it.
  virtual absl::Status TakeStep() = 0;

  bool stepped_ = false;
  bool between_epochs_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_TRAIN_TRAINING_H_
