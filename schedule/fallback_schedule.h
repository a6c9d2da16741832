#ifndef COXSWAIN_SCHEDULE_FALLBACK_SCHEDULE_H_
#define COXSWAIN_SCHEDULE_FALLBACK_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "schedule/plan.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"

namespace coxswain::schedule {

// Decides while no coordinator is reachable: holds an agreement for each
// stream, as a coordinator that was restarted has them, with no memory but the
// ranks'. A state machine without clock, locks or network; used by StandInDesk,
// and by the simulation of tests/simulation.
//
// It decides only what all ranks have announced to it in one spell: a time in
// which ranks arrive and none leaves. Once one has left, nothing is sent; the
// next arrival begins another spell, with nothing known, and sends all others
// away, so that they arrive again. A decision rests on tickets of ranks that
// were all here when it was made.
//
// It has no new plans, and takes no requests for a regroup or a checkpoint.
// What it cannot decide it leaves to the coordinator, and sends nothing until
// the next spell: after tickets that differ or drain, and after whatever fails
// an agreement.
class FallbackSchedule {
 public:
  struct Options {
    int world_size = 0;
    // The newest plan that is known here, asked as a stream begins.
    std::function<Plan()> plan;
    size_t max_streams = 64;
    size_t max_stream_bytes = kMaxStreamBytes;
  };
  // What is to be sent: messages with their stream and spell.
  using Messages = StepAgreement::Messages;

  explicit FallbackSchedule(Options options);

  struct Arrival {
    int64_t spell = 0;  // from 1
    std::vector<int> sent_away;
  };
  Arrival OnArrival(int rank);
  // It follows the coordinator again, or its connection is lost.
  void OnGone(int rank);

  // Of a rank that is here; those of others are ignored.
  Messages OnPosition(int rank, absl::string_view stream, const Decision& last,
                      absl::Time now);
  Messages OnTicket(int rank, absl::string_view stream, const Ticket& ticket,
                    absl::Time now);
  Messages OnVote(int rank, absl::string_view stream, const Vote& vote,
                  absl::Time now);

  int64_t spell() const { return spell_; }
  bool here(int rank) const { return here_[static_cast<size_t>(rank)]; }
  // Why nothing is decided in this spell; empty: nothing is in the way.
  const std::string& silent() const { return silent_; }

 private:
  // Null: nothing is sent in this spell.
  StepAgreement* Find(int rank, absl::string_view stream);
  Messages Take(absl::string_view stream, const StepAgreement& agreement,
                StepAgreement::Messages messages);
  void FallSilent(std::string why);

  const Options options_;
  int64_t spell_ = 0;
  bool broken_ = true;  // a rank has gone since it began
  std::vector<bool> here_;
  std::map<std::string, StepAgreement, std::less<>> streams_;
  int64_t heard_plan_ = 0;  // the newest that a position has brought
  std::string silent_;
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_FALLBACK_SCHEDULE_H_
