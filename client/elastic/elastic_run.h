#ifndef COXSWAIN_CLIENT_ELASTIC_ELASTIC_RUN_H_
#define COXSWAIN_CLIENT_ELASTIC_ELASTIC_RUN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/elastic/catch_up/catch_up_target.h"
#include "client/elastic/elastic_state.h"
#include "client/elastic/recovery.h"
#include "client/reduce/hook.h"
#include "client/session/session.h"
#include "schedule/plan.h"

namespace coxswain {

// What changed when a generation began, for the log and for observers.
struct RecoveryReport {
  int64_t generation = 0;
  int rank = 0;
  int world_size = 0;
  int64_t previous_generation = 0;  // 0: the first of this process
  int previous_world_size = 0;
  int64_t step = 0;     // that all ranks go on from
  int source = -1;      // whose state was copied; -1: all had the same
  bool copied = false;  // to this rank
  // This rank had taken it while it waited.
  bool caught_up = false;
  double error_scale = 1;  // of this rank's errors
  // Members that are lost or have left, each in a sentence with the norm of the
  // error that was lost with it, where that is known.
  std::vector<std::string> lost;
  // Training that may be lost: a state that was dropped for another one, or a
  // job that begins although its workers may still have a state. Each in a
  // sentence; they are logged, too.
  std::vector<std::string> warnings;
  absl::Duration took;  // from the end of the last generation on
  // Of that: until this worker was a member of this one, and from then on until
  // it was connected to the others. In the rest it takes their last steps,
  // where it catches up, and recovery compares and copies.
  absl::Duration joining;
  absl::Duration connecting;
};

// One generation, as the training function sees it. Ends with it.
struct ElasticGeneration {
  Session* session = nullptr;
  Communicator* communicator = nullptr;  // of all ranks
  // The hook's state to go on with, for Hook::LoadOwn; unset where there is
  // none yet: a first generation.
  std::optional<HookState> hook_state;
  double error_scale = 1;
  // The generation in which the state's last step was committed, or that began
  // with it because ranks went back to it; 0: neither yet. Two states of a job
  // are the same if this and their progress are.
  int64_t trained = 0;
  int64_t lineage = 0;  // of the state: see RankFacts
  RecoveryReport recovery;
  // To be called before each step, while nothing of it has begun, with the hook
  // and the plan that it follows: may copy the state, to go back to it if ranks
  // come to hold different bits (RecoveryOptions::replay). A program that does
  // not call it goes back to none.
  std::function<void(const Hook& hook, const schedule::Plan& plan)> before_step;
  // To be called after each optimizer step: reports to the coordinator how far
  // this worker is, and, if it is to drain, that it wants to.
  std::function<void(int64_t step)> after_step;
};

// Trains through changes of the job's members, in one process:
//
//   join -> recover -> train ---- done --------------------> leave, OK
//             ^          |
//             |          +-- a member was lost, or one is to be admitted
//             +-- rejoin-+
//
// In each generation the ranks agree on the last committed step: those that
// are behind, and newcomers, copy the state of the lowest rank that has it.
// Then all hold the same bits, which is checked, and `train` is called.
//
// Threading: all in the thread that calls Run.
class ElasticRun {
 public:
  struct Options {
    SessionOptions session;
    JobManifest manifest;
    RecoveryOptions recovery;
    // After so many generations in a row without a committed step the last
    // error is final: something ends every one of them.
    int max_fruitless = 16;
    // How long to wait, after an error that a peer's end may have caused, for
    // the coordinator's reason: longer than the coordinator's lease.
    absl::Duration reason_timeout = absl::Seconds(30);
    // How long a worker that has finished waits for the others before it
    // leaves, so that each of them still finds the last step if it must
    // recover.
    absl::Duration finish_timeout = absl::Minutes(5);
    // Takes the state of the members while this worker waits as a spare, if it
    // may: in plain text, and in a job without a mesh. Outlives Run. Null: this
    // worker copies it once it is a member.
    CatchUpTarget* catch_up = nullptr;
    // How long a newcomer waits while nothing comes of the members' last steps,
    // once it is connected to them. They wait with it.
    absl::Duration last_step_timeout = absl::Seconds(1);
    // Called for each generation, before `train`: what that adds to the report,
    // such as a return to a checkpoint, is not in it, nor logged as
    // recovery_warning.
    std::function<void(const RecoveryReport&)> on_recovery;
    // Ends this worker's training after a step, once it returns true:
    // DrainSignalled of drain_signal.h, for example. May be null.
    std::function<bool()> drain_requested;
    std::string drain_reason = "it was asked to drain";
    // Called when this worker asks to be drained, in the thread that trains.
    // May be null.
    std::function<void(Session&)> on_drain;
  };

  // The outcome of one generation's training. The function returns kFinished
  // when training is finished, kRegroup after a step whose decision is to
  // regroup, and an error otherwise. An error counts as the generation's end if
  // that has ended (session->status() is not OK, possibly a moment later: see
  // Explain), or if it may be one of a connection between workers that both
  // live: they all connect again in the next one. Other errors are final, and
  // the peers continue without this rank; so is the same error again without a
  // step between, and always INVALID_ARGUMENT, UNIMPLEMENTED, OUT_OF_RANGE,
  // DATA_LOSS.
  enum class Outcome { kFinished, kRegroup };
  struct Trained {
    Outcome outcome = Outcome::kFinished;
    // The progress of the checkpoint that it went back to from the state that
    // the generation had recovered, if it did: see RankFacts::trained.
    std::optional<int64_t> went_back_to;
    // This rank's own hook state, as of state->step(), its errors scaled for
    // this generation: Hook::SaveOwn, once the step in flight was rolled back.
    // Unset: it is ElasticGeneration::hook_state, unchanged.
    std::optional<HookState> hook_state;
  };
  // Fills in `trained` also when it returns an error. Destroys what it made
  // with the generation's communicator and session before it returns.
  using Train =
      std::function<absl::Status(ElasticGeneration&, Trained* trained)>;

  // Why Run returned OK.
  enum class Ending {
    kFinished,   // `train` returned it
    kDrained,    // this worker was asked to
    kNotNeeded,  // the job has ended while this worker waited
  };

  // Returns OK with the reason in `ending`, if that is not null; also for a
  // worker that had finished when others were lost, and that waited for them
  // without success. Errors: those of Session::Join, of `train`, and of the
  // state; INTERNAL for an exception of one of these, or of a function in
  // `options`.
  static absl::Status Run(const Options& options, ElasticState* state,
                          const Train& train, Ending* ending = nullptr);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_ELASTIC_ELASTIC_RUN_H_
