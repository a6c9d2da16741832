#ifndef COXSWAIN_TESTS_SIMULATION_STAND_IN_WORLD_H_
#define COXSWAIN_TESTS_SIMULATION_STAND_IN_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
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
  kListensToBoth,   // a rank acts upon decisions of whoever speaks first
  kLeavesUnheard,   // it follows the coordinator without being let go
  kHidesSpells,     // it does not say that it was with the stand-in
  kHearsOldSpells,  // it takes decisions from before its coordinator knew that
};

// One history of a generation whose ranks have two who may decide: the real
// StepAgreement, a real schedule::FallbackSchedule, and a real StepAgent for
// each rank. Nothing has a time: whatever can happen next may, in an order that
// the seed draws. Streams keep what is said in order; each of their ends finds
// out by itself that the other is gone, and reads first what was under way. The
// coordinator dies and is started again, or only loses its streams, or stands
// still for as long as nothing of it is drawn.
//
// Session's StandIn and AttachedSchedule, and the schedule room, do the same
// with threads and sockets.
class StandInWorld {
 public:
  StandInWorld(uint64_t seed, Disloyalty disloyalty);

  struct Result {
    std::string violation;       // empty: everything held
    int64_t by_coordinator = 0;  // decisions
    int64_t by_stand_in = 0;
    int64_t forgotten = 0;  // of the coordinator, that were made otherwise
    int64_t spells = 0;
    int64_t crashes = 0;
    int64_t plans = 0;  // that the ranks have come to follow
  };
  Result Run();

 private:
  struct Up {
    enum class Kind { kHello, kStoodIn, kPosition, kTicket, kVote, kLetGo };
    Kind kind = Kind::kHello;
    int64_t spell = 0;
    schedule::Decision last;
    schedule::Ticket ticket;
    schedule::Vote vote;
  };
  struct Down {
    enum class Kind { kAttached, kGrant, kDecision, kEnd };
    Kind kind = Kind::kAttached;
    int64_t spell = 0;
    int64_t round = 0;
    schedule::Decision decision;
    bool let_go = false;  // kEnd
  };
  struct Stream {
    int id = 0;
    int rank = 0;
    bool to_stand_in = false;
    int coordinator = 0;  // which one of them
    bool rank_open = true;
    bool server_open = true;
    std::deque<Up> up;
    std::deque<Down> down;
  };
  enum class Leader { kNobody, kCoordinator, kStandIn };
  struct Worker {
    explicit Worker(schedule::StepAgent::Options options)
        : agent(std::move(options)) {}
    schedule::StepAgent agent;
    int64_t plan_version = 1;
    bool voted = false;
    Leader leader = Leader::kNobody;
    Stream* coordinator = nullptr;  // its open streams
    Stream* stand_in = nullptr;
    bool attached = false;
    bool lost = true;
    bool visiting = false;  // accepted by the stand-in
    bool bound = false;
    int64_t spell = 0;
    int64_t visit_spell = 0;
  };
  struct Outcome {
    schedule::Decision decision;
    std::string text;
  };

  // What may happen next.
  void HappenOnce();
  void Work(int rank);
  void Connect(int rank, bool to_stand_in);
  void Break(Stream* stream);
  void ReadAtServer(Stream* stream);
  void ReadAtRank(Stream* stream);
  void Crash();
  void Start(bool resumed);

  // The coordinator.
  void HearAtCoordinator(Stream* stream, const Up& up);
  bool Speaks(const Stream& stream);
  void BeginSpell(int64_t spell, int rank);
  void MakeAgreement(bool resumed);
  std::optional<schedule::Plan> NextPlan(int64_t step);
  void SayAsCoordinator(const schedule::StepAgreement::Messages& messages);
  // The stand-in.
  void HearAtStandIn(Stream* stream, const Up& up);
  void SayAsStandIn(const schedule::FallbackSchedule::Messages& messages);
  void EndVisit(int rank, bool let_go);

  // A rank.
  void OnCoordinatorAttached(int rank);
  void OnCoordinatorGone(int rank);
  void FollowCoordinator(int rank);
  void FollowStandIn(int rank);
  void SayPosition(int rank, Stream* stream);
  void Pump(int rank);
  void OnDown(Stream* stream, const Down& down);
  void NoteActed(int rank, int64_t round, const schedule::Decision& decision);

  Worker& Rank(int rank) { return workers_[static_cast<size_t>(rank)]; }
  bool Done() const;
  void Violate(absl::string_view what);
  void SayDown(Stream* stream, Down down);
  static Down DownOf(const schedule::StepAgreement::Message& message,
                     int64_t spell);

  const Disloyalty disloyalty_;
  Dice dice_;
  int world_ = 2;
  int64_t rounds_ = 8;
  bool healed_ = false;
  absl::Time now_ = absl::UnixEpoch();
  Result result_;

  std::vector<Worker> workers_;
  std::vector<std::unique_ptr<Stream>> streams_;
  int last_stream_ = 0;
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
  int64_t spell_ = 0;
  std::vector<Stream*> attached_;  // by rank
  std::vector<int> speakers_;      // by rank: ids of streams
  std::vector<int> barred_;

  std::unique_ptr<schedule::FallbackSchedule> stand_in_;
  std::vector<Stream*> visits_;  // by rank
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_STAND_IN_WORLD_H_
