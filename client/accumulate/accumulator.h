#ifndef COXSWAIN_CLIENT_ACCUMULATE_ACCUMULATOR_H_
#define COXSWAIN_CLIENT_ACCUMULATE_ACCUMULATOR_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// What to do with one micro-batch.
struct MicroBatch {
  int64_t step = 0;  // the window that it belongs to, from 0
  int micro = 0;     // its place in the window, from 0
  // How many micro-batches the window is planned to have: what to divide each
  // loss by, so that the gradients sum to their mean.
  int window = 1;
  // Whether the gradients are exchanged in this one's backward pass.
  bool sync = true;
};

// A window that the end of the data cut short.
struct Tail {
  int64_t step = 0;
  int micros = 0;  // gradients summed so far; 0: nothing is left over
  // What to multiply the summed gradients by, because their losses were
  // divided by the planned window.
  double rescale = 1;
};

// Answers for each micro-batch whether its gradients are exchanged or only
// summed up locally: a pure function of the accumulation steps and of how many
// micro-batches were begun, so all ranks that begin equally many agree.
//
// Streams are counted apart by name: an evaluation loop inside a training loop
// uses one of its own.
//
// The end of the data closes a window (flush): if BeginEpoch said how many
// micro-batches come, the last window is planned that much shorter; otherwise
// EndOfData says what is left over.
//
// Threading: one thread at a time.
class Accumulator {
 public:
  // INVALID_ARGUMENT if `accumulation_steps` is below 1.
  static absl::StatusOr<Accumulator> Create(int accumulation_steps);

  int accumulation_steps() const { return accumulation_steps_; }

  // Says how many micro-batches come until the end of the data.
  // FAILED_PRECONDITION in the middle of a window.
  absl::Status BeginEpoch(int64_t micro_batches,
                          absl::string_view stream = "train");

  // OUT_OF_RANGE after as many micro-batches as BeginEpoch was told.
  absl::StatusOr<MicroBatch> BeginMicroBatch(
      absl::string_view stream = "train");

  // Ends the data, and with it the window. If micros > 0, the caller rescales
  // and exchanges the gradients before it steps.
  Tail EndOfData(absl::string_view stream = "train");

  // OK if the last micro-batch that was begun exchanges its gradients:
  // called before an optimizer step. FAILED_PRECONDITION says how many
  // micro-batches are missing.
  absl::Status CheckOptimizerStep(absl::string_view stream = "train") const;

  // Where each stream stands: its number of ended windows. FAILED_PRECONDITION
  // in the middle of a window, whose local gradients no position can tell.
  absl::StatusOr<std::map<std::string, int64_t>> Position() const;
  // Goes on from there; forgets windows that were begun and epochs' lengths.
  // INVALID_ARGUMENT if a count is negative.
  absl::Status Restore(const std::map<std::string, int64_t>& position);

 private:
  struct Stream {
    int64_t step = 0;
    int micro = 0;           // begun in the current window
    int window = 0;          // planned; 0 before its first micro-batch
    int64_t left = -1;       // micro-batches until the end; -1: not known
    bool gradients = false;  // that have been exchanged are there
  };

  explicit Accumulator(int accumulation_steps)
      : accumulation_steps_(accumulation_steps) {}
  Stream& Find(absl::string_view stream);

  int accumulation_steps_;
  std::map<std::string, Stream> streams_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ACCUMULATE_ACCUMULATOR_H_
