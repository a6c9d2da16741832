#ifndef COXSWAIN_CLIENT_PIPELINE_PIPELINE_EXECUTOR_H_
#define COXSWAIN_CLIENT_PIPELINE_PIPELINE_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/comm/communicator.h"
#include "client/pipeline/boundary.h"
#include "client/pipeline/place_book.h"
#include "client/pipeline/stage_runner.h"
#include "schedule/pipeline/place.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain {

struct PipelineExecutorOptions {
  // Messages of one way across a boundary that wait at each end: more where the
  // schedule needs more to come to its end (schedule/pipeline/proof.h).
  int capacity = 2;
  int64_t slot_bytes = int64_t{1} << 20;
  int slots = 4;
  int64_t max_message_bytes = int64_t{1} << 30;
  // How long an action waits for a peer.
  absl::Duration timeout = absl::Minutes(5);
  Clock* clock = Clock::Real();
  // Called at the end of each step, also of one that fails, on the thread of
  // Run, with the actions that have ended and when: of a step's, the first
  // kMaxTimedActions. See TraceActions. Null: nothing is kept.
  std::function<void(int64_t step, const std::vector<TimedAction>& actions)>
      on_step;
};

inline constexpr size_t kMaxTimedActions = size_t{1} << 16;

// Runs a rank's part of a pipeline: the actions of its list, one after the
// other, over the stages that it holds. Messages go over channels between the
// ranks of a communicator, rank r of which has list r of the schedule.
//
// Life-cycle: made once for a communicator, on all of its ranks, and run once
// for each step. A rank that fails aborts the communicator, so that the other
// ranks' steps end too, from neighbour to neighbour, with its stage and action
// in their errors; then the executor is of no use any more. The tags of
// channels from 0x70000000 on are its own.
//
// Threading: Create, SetSchedule, PassStep and Run by one thread at a time;
// place from any thread. The stages are called on the thread of Run.
class PipelineExecutor {
 public:
  // `stages` are those that the schedule gives this rank, in their order; they
  // outlive the executor, and so does the communicator. Does not wait for the
  // peers.
  //
  // INVALID_ARGUMENT: the schedule has no transfers, or another number of ranks
  // or stages. FAILED_PRECONDITION: it does not come to its end, whatever the
  // capacity. UNIMPLEMENTED: the back end has no channels, or a stage no
  // backward passes in halves, which the schedule has. Otherwise the errors of
  // Communicator::OpenSender, after which the communicator is of no use for an
  // executor.
  static absl::StatusOr<std::unique_ptr<PipelineExecutor>> Create(
      pipeline::Schedule schedule, Communicator* communicator,
      std::vector<StageRunner*> stages, const PipelineExecutorOptions& options);

  // From the next step on, on all ranks: another schedule, of the same stages
  // on the same ranks, as for another number of micro-batches. Fails as Create,
  // and then nothing has changed.
  absl::Status SetSchedule(pipeline::Schedule schedule);

  // Runs a step. Returns once this rank's list is done and what it has sent is
  // on its way. An error has the stage and the action: "stage 2, 2F7: ...".
  absl::Status Run();

  // Whether times of passes count among the medians of place(), from the next
  // step on: not those of steps without backward passes.
  void SetMeasured(bool measured) { measured_ = measured; }

  // Counts a step that the other ranks run, and this pipeline does not, as it
  // has no data for it: its ranks are at the end of their lists from now on. So
  // that the step in place() is that of all ranks.
  void PassStep();

  // Where this rank is in its list, and how long its passes take.
  PipelinePlace place() const { return places_->place(); }
  // Returns a function that returns the same, for Session::SetPipelinePlace:
  // from any thread, also once this executor has ended.
  std::function<std::optional<PipelinePlace>()> PlaceSource() const;
  const pipeline::Schedule& schedule() const { return schedule_; }
  // Returns its Hash, which was computed once.
  uint64_t schedule_hash() const { return hash_; }

 private:
  // A stage and a micro-batch.
  using Key = std::pair<int, int>;

  PipelineExecutor(pipeline::Schedule schedule, Communicator* communicator,
                   std::vector<StageRunner*> stages,
                   const PipelineExecutorOptions& options);
  // Returns the capacity that the schedule needs.
  absl::StatusOr<int> Check(const pipeline::Schedule& schedule) const;
  absl::Status OpenBoundaries(int capacity);
  absl::Status RunActions();
  absl::Status Do(const pipeline::Action& action);
  absl::Status Forward(const pipeline::Action& action);
  absl::Status Backward(const pipeline::Action& action);
  // Passes what a stage has computed on to the neighbour, on this rank or by a
  // send that follows.
  void HandOn(int stage, bool forward, int micro_batch, Activations tensors);
  absl::StatusOr<Activations> Take(std::map<Key, Activations>* from, int stage,
                                   int micro_batch);
  StageRunner& StageOf(int stage) const;
  bool IsOwn(int stage) const;

  pipeline::Schedule schedule_;
  uint64_t hash_;  // of it
  bool measured_ = true;
  Communicator* const communicator_;
  const std::vector<StageRunner*> stages_;
  const PipelineExecutorOptions options_;
  std::map<int, size_t> place_of_stage_;
  // By channel.
  std::map<int, std::unique_ptr<BoundarySender>> senders_;
  std::map<int, std::unique_ptr<BoundaryReceiver>> receivers_;
  // What a stage of this rank is to compute with, and what it has computed that
  // is to be sent.
  std::map<Key, Activations> inputs_;
  std::map<Key, Activations> gradients_;
  std::map<Key, Activations> outputs_;
  std::map<Key, Activations> input_gradients_;
  const std::shared_ptr<PlaceBook> places_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_PIPELINE_PIPELINE_EXECUTOR_H_
