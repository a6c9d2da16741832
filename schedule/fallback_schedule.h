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
#include "base/mesh.h"
#include "schedule/epoch.h"
#include "schedule/plan.h"
#include "schedule/step_agreement.h"
#include "schedule/ticket.h"

namespace coxswain::schedule {

// Decides while no coordinator is reachable: holds an agreement for each
// stream, like a coordinator that was restarted, with no memory but the ranks'.
// A state machine without clock, locks or network; used by FallbackCoordinator,
// and by the simulation of tests/simulation.
//
// It decides only what all ranks have announced to it in one epoch: a time in
// which ranks attach and none detaches. Once one has detached, nothing is sent;
// the next rank to attach begins another epoch, with nothing known, and
// detaches all others, so that they attach again. A decision rests on tickets
// of ranks that were all attached when it was made.
//
// It has no new plans, and takes no requests for a regroup or a checkpoint.
// What it cannot decide it leaves to the coordinator, and is suspended until
// the next epoch: after tickets that differ or drain, and after whatever fails
// an agreement.
class FallbackSchedule {
 public:
  struct Options {
    int world_size = 0;
    // Returns the newest plan that is known here; called as a stream begins.
    std::function<Plan()> plan;
    size_t max_streams = 64;
    size_t max_stream_bytes = kMaxStreamBytes;
    Mesh mesh;  // as StepAgreement::Options::mesh
  };
  // Messages to send, with their stream and epoch.
  using Messages = StepAgreement::Messages;

  explicit FallbackSchedule(Options options);

  struct Attached {
    Epoch epoch;
    std::vector<int> detached;  // the others, as the epoch begins
  };
  Attached OnAttached(int rank);
  // Called when a rank follows the coordinator again, or its connection is
  // lost.
  void OnDetached(int rank);

  // Of a rank that is attached; those of others are ignored.
  Messages OnPosition(int rank, absl::string_view stream, const Decision& last,
                      absl::Time now);
  Messages OnTicket(int rank, absl::string_view stream, const Ticket& ticket,
                    absl::Time now);
  Messages OnVote(int rank, absl::string_view stream, const Vote& vote,
                  absl::Time now);

  const Epoch& epoch() const { return epoch_; }
  bool attached(int rank) const { return attached_[static_cast<size_t>(rank)]; }
  // Returns why nothing is decided in this epoch; empty if it may decide.
  const std::string& suspended() const { return suspended_; }

 private:
  // Returns null if nothing is sent in this epoch.
  StepAgreement* Find(int rank, absl::string_view stream);
  Messages Take(absl::string_view stream, const StepAgreement& agreement,
                StepAgreement::Messages messages);
  void Suspend(std::string why);
  // "rank 3", or "rank 3 (dp 1, shard 1)".
  std::string Named(int rank) const;

  const Options options_;
  Epoch epoch_;
  bool broken_ = true;  // a rank has detached since it began
  std::vector<bool> attached_;
  std::map<std::string, StepAgreement, std::less<>> streams_;
  int64_t received_plan_ = 0;  // the newest that a position has brought
  std::string suspended_;
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_FALLBACK_SCHEDULE_H_
