#ifndef COXSWAIN_TESTS_SIMULATION_REFEREE_H_
#define COXSWAIN_TESTS_SIMULATION_REFEREE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "schedule/plan.h"
#include "schedule/step_gate.h"
#include "schedule/ticket.h"
#include "tests/simulation/history.h"

namespace coxswain::simulation {

// Compares what happens in a history with what must hold in each. Knows nothing
// of how either side works: only which messages were sent to whom, and what was
// done then. Keeps the first violation.
class Referee {
 public:
  explicit Referee(const History& history);

  // What the coordinator has received; repetitions do not count.
  void OnTicketReceived(int rank, const schedule::Ticket& ticket);
  void OnVoteReceived(int rank, const schedule::Vote& vote);
  // What it sends. `plan` is the one that the round was measured by.
  void OnRegroupWanted() { regroup_wanted_ = true; }
  void OnCheckpointWanted() { checkpoint_wanted_ = true; }
  // Called when it has died, and knows only what was kept.
  void OnCrashed();
  // Called when a decision is durable.
  void OnKept(int64_t round);
  void OnGranted(int64_t round);
  void OnDecided(const schedule::Decision& decision,
                 const schedule::Plan& plan);
  void OnFailed(const absl::Status& failure);
  void OnWarned(absl::string_view text);

  // What a rank does.
  void OnAnnounced(int rank, int64_t round, int64_t step,
                   const schedule::Plan& plan);
  void OnExchangeBegins(int rank, int64_t round, const schedule::Plan& plan);
  // Called when it knows the decision, and can act on it.
  void OnReceived(int64_t round);
  void OnActed(int rank, int64_t round, int64_t step,
               const schedule::Decision& decision);
  void OnWaited(int rank, absl::Duration waited, absl::Duration limit);
  // Called when a rank's timeout passed before it got an answer.
  void OnTimeout(int rank);
  void OnLeft(int rank);
  void OnDeviated(int rank) { deviated_.push_back(rank); }

  // After the last event. The text is empty if everything held.
  struct Ending {
    int left = 0;     // ranks that have left cleanly
    int at_gate = 0;  // that wait for a grant or a decision
  };
  void OnEnd(const Ending& ending);
  // Reports a violation that no other call covers.
  void Violate(absl::string_view what);
  const std::string& violation() const { return violation_; }
  const absl::Status& failure() const { return failure_; }
  bool deviated() const { return !deviated_.empty(); }
  int64_t decided() const { return static_cast<int64_t>(rounds_.size()); }

  struct Decided {
    bool commit = true;
    std::string tag;
    std::string stop;
    int64_t plan_version = 0;  // that it brings; 0: none
    std::string regroup;
    std::string checkpoint;
    int coordinator = 0;    // that made it
    bool received = false;  // by any rank
    bool kept = false;
  };
  const std::vector<Decided>& rounds() const { return rounds_; }

  // Returns how many decisions no rank knew after a crash.
  int64_t made_again() const { return made_again_; }

  // What the test's own wire puts into a decision, to know it again.
  static constexpr char kTag[] = "round ";
  static std::string Tag(const schedule::Decision& decision);

 private:
  struct Received {
    int tickets = 0;
    int votes = 0;
    bool skip = false;
    bool stop = false;
    bool drain = false;
    bool checkpoint = false;
    bool ends_window = false;
    std::vector<bool> ticket_of;
    std::vector<bool> vote_of;
  };

  Received& ReceivedIn(int64_t round);
  // Returns whether a round was decided by an earlier coordinator, and no rank
  // knows of it.
  bool IsForgotten(int64_t round) const;
  void CheckRegroup(const schedule::Decision& decision,
                    const Received& received);
  void CheckCheckpoint(const schedule::Decision& decision,
                       const schedule::Plan& plan, const Received& received);
  void CheckFailureNames();
  bool Silent() const;
  bool MustFail() const;

  const History& history_;
  std::map<int64_t, Received> received_;
  std::vector<Decided> rounds_;
  int coordinator_ = 0;
  int64_t made_again_ = 0;
  bool regroup_wanted_ = false;
  bool checkpoint_wanted_ = false;
  std::vector<int64_t> acted_;  // rounds, by rank
  std::map<int64_t, int64_t> plan_of_step_;
  std::vector<int> deviated_;
  absl::Status failure_;
  int warnings_ = 0;
  std::string violation_;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_REFEREE_H_
