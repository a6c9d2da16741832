#ifndef COXSWAIN_CLIENT_ACCUMULATE_ACCUMULATOR_H_
#define COXSWAIN_CLIENT_ACCUMULATE_ACCUMULATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"

namespace coxswain {

// What to do with one micro-batch.
struct MicroBatch {
  int64_t step = 0;  // the window that it belongs to, from 0
  int micro = 0;     // its place in the window, from 0
  // How many micro-batches the window is planned to have.
  int window = 1;
  // What to multiply its mean loss by: 1 / window, or with weights its share of
  // that, so that local sums stay of the size of a mean.
  double loss_scale = 1;
  // The weight is 0: the micro-batch counts for nothing, and needs no backward
  // pass.
  bool empty = false;
  // Whether the window ends with this one: an optimizer step follows.
  bool sync = true;
  // Whether the gradients are exchanged in this one's backward pass: where
  // sync is, and with sync_each_batch always, unless the window is known to be
  // dropped.
  bool exchange = true;
  // How many steps of a learning-rate scheduler the optimizer step stands for,
  // as the plan's adjust_scheduler counts them, and the same on all ranks:
  // where their windows may differ in length, it is the plan's first rank's, or
  // all ranks' together, and a short window counts as a whole one. 0 where sync
  // is false, and of no meaning where the step is skipped.
  int64_t scheduler_steps = 1;
};

// What an exchange carries: the micro-batches since the last one.
struct WindowSum {
  int64_t step = 0;
  // With sync_each_batch, the place in the window of the micro-batch. Otherwise
  // 0, as ranks may have windows of different lengths.
  int micro = 0;
  int micro_batches = 0;  // 0: nothing was summed up
  int window = 1;         // planned
  double weight = 0;      // the sum of theirs; 0 too if all were empty
  // What the losses' scales have divided the weighted sum of their gradients
  // by: the average over the ranks is
  //   sum over ranks of (divisor * gradients) / sum over ranks of weight.
  // With sync_each_batch both are 1: the averages of a window's exchanges sum
  // up to the mean.
  double divisor = 1;
  // The end of the data cut the window short, which ends with this exchange.
  bool end_of_data = false;
  // What to multiply the summed gradients by, because their losses were divided
  // by the planned window: before the exchange, where no header exchange has
  // the weights. With sync_each_batch: the sum of the window's averages, at its
  // end, if all ranks learn of the end of their data in the same way.
  double rescale = 1;
  // With sync_each_batch: micro-batches of the window that have been exchanged
  // before. EndOfData leaves an optimizer step to do if they are more than 0.
  int exchanged = 0;
  // As in MicroBatch; 0 unless a window ends.
  int64_t scheduler_steps = 0;
};

// Returns the ticket of an exchange of this sum.
schedule::Ticket TicketOf(const WindowSum& sum);

// Decides for each micro-batch whether its gradients are exchanged or only
// summed up locally: a pure function of the plan and of how many micro-batches
// were begun, so all ranks that begin equally many agree. Sends nothing.
//
// Streams are counted separately, by name: an evaluation loop inside a training
// loop uses a stream of its own.
//
// The end of the data closes a window by the plan's tail. flush: if BeginEpoch
// was given the number of micro-batches, or end_of_data was set with the last
// one, the last window is planned that much shorter; otherwise EndOfData
// returns what is left over. carry: windows go on into the next epoch. drop:
// they are begun as any others, but nothing is exchanged in them if BeginEpoch
// was given their number; EndOfData returns what to forget.
//
// Threading: one thread at a time.
class Accumulator {
 public:
  struct Options {
    schedule::Plan plan;
    // Among those that average the same gradients: in a mesh with pp or tp, its
    // data index, and how many there are (DataPlaceOf).
    int rank = 0;
    int world_size = 1;
  };
  struct Begin {
    // The number of samples or tokens, with the plan's weighting; one of 0 is
    // empty, and has its place in the window all the same. With weighting=mean
    // each micro-batch counts 1, whatever is stated, so a program may state it
    // always.
    std::optional<double> weight;
    // The data ends with this micro-batch.
    bool end_of_data = false;
  };

  // Fails with INVALID_ARGUMENT if the plan has no accumulation steps, or terms
  // that contradict each other.
  static absl::StatusOr<Accumulator> Create(const Options& options);
  // Returns an accumulator for a loop without a plan: so many accumulation
  // steps, and the default terms.
  static absl::StatusOr<Accumulator> Create(int accumulation_steps);

  const schedule::Plan& plan() const { return options_.plan; }

  // Sets how many micro-batches are left until the end of the data. Fails with
  // FAILED_PRECONDITION in the middle of a window, unless tail=carry.
  absl::Status BeginEpoch(int64_t micro_batches,
                          absl::string_view stream = schedule::kTrainStream);

  // Begins a micro-batch. Fails with OUT_OF_RANGE after as many micro-batches
  // as BeginEpoch was given, after the one that had end_of_data, and, for the
  // stream "train", after the plan's max_steps. Fails with INVALID_ARGUMENT if
  // the weight is below 0 or not finite, or is not stated although the plan
  // weighs micro-batches.
  absl::StatusOr<MicroBatch> BeginMicroBatch(
      absl::string_view stream = schedule::kTrainStream);
  absl::StatusOr<MicroBatch> BeginMicroBatch(absl::string_view stream,
                                             const Begin& begin);

  // Begins all micro-batches of a window at once, or those that are missing
  // from one that tail=carry has carried over: as BeginMicroBatch does, one
  // after the other. They are as many as micro_batches_due, or fewer with
  // end_of_data at the last one. Fails, and begins none, as BeginMicroBatch
  // does, with INVALID_ARGUMENT for another number, and with
  // FAILED_PRECONDITION if each micro-batch is to be exchanged
  // (sync_each_batch).
  absl::StatusOr<std::vector<MicroBatch>> BeginWindow(
      absl::string_view stream, absl::Span<const Begin> micro_batches);
  // Returns how many micro-batches BeginWindow takes next; 0 at the end of the
  // data.
  int micro_batches_due(
      absl::string_view stream = schedule::kTrainStream) const;

  // Returns what the exchange of the last micro-batch carries, whose `exchange`
  // was true.
  WindowSum Sum(absl::string_view stream = schedule::kTrainStream) const;

  // Ends the data, and with it the window, unless tail=carry; micro-batches may
  // be begun again. Returns what is left over (micro_batches > 0): the caller
  // exchanges it and steps (flush), or forgets it (drop). With carry nothing is
  // left over.
  WindowSum EndOfData(absl::string_view stream = schedule::kTrainStream);
  // Forgets the window that was begun, whatever the tail; it is no step.
  void DropWindow(absl::string_view stream = schedule::kTrainStream);

  // Counts a step in which this rank, out of data, only takes part: weight 0.
  // Comes after EndOfData; forgets a window that was begun.
  WindowSum StepWithoutData(absl::string_view stream = schedule::kTrainStream);

  // Returns OK if the last micro-batch ends its window: called before an
  // optimizer step. Fails with FAILED_PRECONDITION otherwise, with the number
  // of micro-batches that are missing.
  absl::Status CheckOptimizerStep(
      absl::string_view stream = schedule::kTrainStream) const;

  // Returns whether all of max_steps have ended. Only the stream "train" can be
  // finished.
  bool finished(absl::string_view stream = schedule::kTrainStream) const;

  // Replaces the plan for the windows that begin from now on. Fails with
  // INVALID_ARGUMENT as Create does, and with FAILED_PRECONDITION in the middle
  // of a window of the stream "train", except with tail=carry if weighting and
  // sync_each_batch stay.
  absl::Status ChangePlan(const schedule::Plan& plan);

  // Returns each stream's number of ended windows. Fails with
  // FAILED_PRECONDITION in the middle of a window of the stream "train", whose
  // local gradients are not part of a position. For other streams a window that
  // has begun does not count, and begins again after Restore.
  absl::StatusOr<std::map<std::string, int64_t>> Position() const;
  // Continues from `position`; forgets windows that were begun and epochs'
  // lengths. Fails with INVALID_ARGUMENT if a count is negative.
  absl::Status Restore(const std::map<std::string, int64_t>& position);

 private:
  struct Stream {
    int64_t step = 0;
    int64_t left = -1;       // micro-batches until the end; -1: not known
    bool gradients = false;  // that have been exchanged are there
    WindowSum sum;           // of the exchange that was begun last

    // The current window, which keeps to the plan that it was begun with.
    int micro = 0;   // begun
    int window = 0;  // planned
    int full = 0;    // without the end of the data
    bool weighted = false;
    bool each = false;        // sync_each_batch
    bool dropped = false;     // it will not be filled
    double first_weight = 1;  // of those that are not empty; 0: none yet
    double weight = 0;        // of those begun
  };

  explicit Accumulator(const Options& options) : options_(options) {}

  const schedule::Terms& terms() const { return options_.plan.terms; }
  int WindowOf(int rank) const {
    return options_.plan.WindowOf(rank, options_.world_size);
  }
  int Window() const { return WindowOf(options_.rank); }
  // Returns whether all ranks have windows, also short ones, of the same
  // lengths.
  bool ranks_alike() const;

  Stream& Find(absl::string_view stream);
  const Stream* Look(absl::string_view stream) const;
  absl::Status CheckBegin(absl::string_view stream, const Stream& state,
                          const Begin& begin) const;
  absl::Status CheckWeight(absl::string_view stream, const Stream& state,
                           std::optional<double> weight) const;
  void BeginWindow(Stream& state, const Begin& begin);
  static void EndWindow(Stream& state);
  // Returns the sum of a window with at least one micro-batch. `ends`: this is
  // its end.
  WindowSum SumOf(const Stream& state, bool ends) const;
  int64_t SchedulerSteps(const Stream& state) const;

  Options options_;
  std::map<std::string, Stream> streams_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ACCUMULATE_ACCUMULATOR_H_
