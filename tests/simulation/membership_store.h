#ifndef COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_STORE_H_
#define COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_STORE_H_

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/membership/membership_records.h"
#include "server/state/memory_state_store.h"
#include "server/state/state_store.h"
#include "tests/simulation/dice.h"
#include "tests/simulation/membership_timeline.h"

namespace coxswain::simulation {

// What the coordinators of a history write, as a server::GroupCommit does it:
// in order, and what was written meanwhile as one transaction. A crash loses
// what waits; the transaction under way is durable or lost as a whole.
class MembershipStore {
 public:
  using Done = std::function<void(const absl::Status&)>;

  MembershipStore(absl::Duration slowest_write, Timeline* timeline, Dice* dice)
      : slowest_write_(slowest_write), timeline_(*timeline), dice_(*dice) {}

  void Write(server::StateBatch batch, Done done);
  // Calls back once all that was written before is durable, or has failed.
  void AfterWritten(std::function<void()> done);
  void Crash();
  // Makes all pending writes durable, without their callbacks.
  void Drain();

  // Writes fail with this probability from now on.
  void set_failing(double probability) { failing_ = probability; }
  // Reports the next write of a member's departure as durable, and drops it.
  void LoseDeparture() { loses_departure_ = true; }

  server::MemoryStateStore* durable() { return &durable_; }
  // Returns the job as the next coordinator would find it, with its damage if
  // it cannot be read; nothing if there is none.
  std::optional<server::LoadedJob> Load() const;

 private:
  struct Entry {
    server::StateBatch batch;
    Done done;
    bool only_waits = false;
  };
  void Begin();
  void Finish();
  absl::Status Apply(const Entry& entry);

  const absl::Duration slowest_write_;
  Timeline& timeline_;
  Dice& dice_;
  server::MemoryStateStore durable_;
  std::deque<Entry> waiting_;
  std::vector<Entry> transaction_;  // under way
  int crashes_ = 0;
  double failing_ = 0;
  bool loses_departure_ = false;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_MEMBERSHIP_STORE_H_
