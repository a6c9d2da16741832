#ifndef COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_HISTORY_H_
#define COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_HISTORY_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "server/membership/stalled_members.h"
#include "server/options/options.h"

namespace coxswain::simulation {

// What the world does to a job that it should not, to see that the referee
// finds the consequences.
enum class MembershipSabotage {
  kNone,
  kRepliesEarly,     // a departure counts before it is written
  kBeginsUnwritten,  // a generation begins before it is written
  kRepeatsNumber,    // two generations have one number
  kForgetsSurvivor,  // a restart takes a live member for one that left
  kSwallowsAbort,    // one stream ends without the abort
  kSwallowsAnswer,   // one worker of a generation is not answered
  kMovesRank,        // one worker is answered with another rank
  kHidesLeft,        // observers do not learn of a departure
  kAnnouncesFirst,   // workers learn of a generation before its observers
  kDropsHeartbeats,  // the signs of life of one member do not count
  kStopsLooking,     // deadlines are not checked
  kLosesWrite,       // a write is reported as durable, and is not
};

// What a history is like; all of it follows from the seed.
struct MembershipHistory {
  // Return histories of 1 to 8 members, and of 1,000.
  static MembershipHistory Small(uint64_t seed);
  static MembershipHistory Large(uint64_t seed);
  std::string Describe() const;

  bool elastic() const { return min < max; }
  // How often members send heartbeats.
  absl::Duration interval() const {
    return server::HeartbeatInterval(options.heartbeat_interval, stall_timeout);
  }

  uint64_t seed = 0;
  int min = 1;  // members of a generation
  int max = 1;
  int places = 1;  // where a worker runs: its node and slot
  server::MembershipOptions options;
  absl::Duration stall_timeout = absl::InfiniteDuration();  // of its plans
  absl::Duration join_timeout;

  absl::Duration troubled;  // how long there are troubles
  int troubles = 0;         // that come from outside
  absl::Duration slowest_message;
  absl::Duration slowest_write;
  absl::Duration slowest_start;  // of a process
  absl::Duration slowest_abort;  // until a worker acts upon it
  absl::Duration slowest_call;   // between what is decided and done
  double lost = 0;               // messages
  double doubled = 0;
  double failing_writes = 0;
  double unreported = 0;       // deaths of which no launcher reports
  double other_launchers = 0;  // of a process that takes a dead one's place
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_HISTORY_H_
