#ifndef COXSWAIN_TESTS_SIMULATION_FALLBACK_WORLD_H_
#define COXSWAIN_TESTS_SIMULATION_FALLBACK_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "schedule/epoch.h"
#include "schedule/fallback_schedule.h"
#include "schedule/plan.h"
#include "schedule/step_agent.h"
#include "schedule/step_agreement.h"
#include "schedule/step_gate.h"
#include "schedule/ticket.h"
#include "tests/simulation/dice.h"

namespace coxswain::simulation {

// What a rank or the coordinator does that it should not, to see that the
// consequences are found.
enum class Disloyalty {
  kNone,
  kFollowsBoth,  // a rank acts upon the first decision of either leader
  // It follows the coordinator without being released, and compares fallback
  // epochs alone.
  kLeavesUnreleased,
  kHidesEpochs,         // it does not report that it was in a fallback epoch
  kTakesEarlierEpochs,  // it takes decisions of an earlier epoch than it knows
};

// One history of a generation whose ranks have two leaders that may decide: the
// real StepAgreement, a real schedule::FallbackSchedule, and a real StepAgent
// for each rank. No event has a time: whatever can happen next may, in an order
// that the seed draws. Streams keep what is sent in order; each of their ends
// finds out by itself that the other is closed, and reads first what was under
// way. The coordinator dies and is restarted, or only loses its streams, or
// stalls for as long as no event of it is drawn.
//
// Session's FallbackClient and AttachedSchedule, and the server's schedule, do
// the same with threads and sockets.
class FallbackWorld {
 public:
  FallbackWorld(uint64_t seed, Disloyalty disloyalty);

  struct Result {
    std::string violation;       // empty: everything held
    int64_t by_coordinator = 0;  // decisions
    int64_t by_fallback = 0;
    int64_t forgotten = 0;  // of the coordinator, that were made otherwise
    int64_t fallback_epochs = 0;
    int64_t crashes = 0;
    int64_t plans = 0;  // that the ranks have come to follow
  };
  Result Run();

 private:
  struct Up {
    enum class Kind { kHello, kReport, kPosition, kTicket, kVote, kRelease };
    Kind kind = Kind::kHello;
    int64_t fallback_epoch = 0;
    schedule::Decision last;
    schedule::Ticket ticket;
    schedule::Vote vote;
  };
  struct Down {
    enum class Kind { kAttached, kGrant, kDecision, kEnd };
    Kind kind = Kind::kAttached;
    schedule::Epoch epoch;
    int64_t round = 0;
    schedule::Decision decision;
    bool released = false;  // kEnd
  };
  struct Stream {
    int rank = 0;
    bool to_fallback = false;
    int coordinator = 0;  // which one of them
    int attachment = 0;   // counted as hellos arrive
    bool rank_open = true;
    bool server_open = true;
    std::deque<Up> up;
    std::deque<Down> down;
  };
  enum class Leader { kNone, kCoordinator, kFallback };
  struct Worker {
    explicit Worker(schedule::StepAgent::Options options)
        : agent(std::move(options)) {}
    schedule::StepAgent agent;
    int64_t plan_version = 1;
    bool voted = false;
    Leader leader = Leader::kNone;
    Stream* coordinator = nullptr;  // its open streams
    Stream* fallback = nullptr;
    bool attached = false;
    bool lost = true;
    bool in_fallback = false;  // accepted by the fallback coordinator
    bool bound = false;
    schedule::Epoch epoch;           // the highest that it knows
    schedule::Epoch fallback_epoch;  // of its open stream
  };
  struct Outcome {
    schedule::Decision decision;
    std::string text;
  };

  // Draws and makes the next event.
  void HappenOnce();
  void Work(int rank);
  void Connect(int rank, bool to_fallback);
  void Break(Stream* stream);
  void ReadAtServer(Stream* stream);
  void ReadAtRank(Stream* stream);
  void Crash();
  void Start(bool resumed);

  // The coordinator.
  void HandleAtCoordinator(Stream* stream, const Up& up);
  bool Counts(const Stream& stream) const;
  void OnReport(const Stream& stream, int64_t fallback_epoch);
  void RaiseEpoch(const schedule::Epoch& epoch, int rank);
  void MakeAgreement(bool resumed);
  std::optional<schedule::Plan> NextPlan(int64_t step);
  void SendAsCoordinator(const schedule::StepAgreement::Messages& messages);
  // The fallback coordinator.
  void HandleAtFallback(Stream* stream, const Up& up);
  void SendAsFallback(const schedule::FallbackSchedule::Messages& messages);
  void EndFallback(int rank, bool released);

  // A rank.
  void OnCoordinatorAttached(int rank);
  void OnCoordinatorGone(int rank);
  void FollowCoordinator(int rank);
  void FollowFallback(int rank);
  void SendPosition(int rank, Stream* stream);
  void Pump(int rank);
  void OnDown(Stream* stream, const Down& down);
  void NoteActed(int rank, int64_t round, const schedule::Decision& decision);

  Worker& Rank(int rank) { return workers_[static_cast<size_t>(rank)]; }
  bool Done() const;
  void Violate(absl::string_view what);
  void SendDown(Stream* stream, Down down);
  static Down DownOf(const schedule::StepAgreement::Message& message,
                     const schedule::Epoch& epoch);

  const Disloyalty disloyalty_;
  Dice dice_;
  int world_ = 2;
  int64_t rounds_ = 8;
  bool healed_ = false;
  absl::Time now_ = absl::UnixEpoch();
  Result result_;

  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<int64_t, Outcome> outcomes_;
  // What the coordinator has decided last; for the statistics.
  std::map<int64_t, std::string> decided_;

  // Of the coordinator; what outlives it first.
  std::map<int64_t, schedule::Plan> plans_;
  std::vector<schedule::Plan> pending_;
  schedule::Plan plan_;
  std::optional<schedule::Plan> plan_before_;
  std::unique_ptr<schedule::StepAgreement> agreement_;  // null: it is down
  int coordinator_ = 0;
  schedule::Epoch epoch_;
  std::vector<Stream*> attached_;  // by rank
  int last_attachment_ = 0;
  struct Sender {
    int attachment = 0;
    schedule::Epoch epoch;
  };
  std::vector<Sender> senders_;  // by rank

  std::unique_ptr<schedule::FallbackSchedule> fallback_;
  std::vector<Stream*> fallback_attached_;  // by rank
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_FALLBACK_WORLD_H_
