#ifndef COXSWAIN_SERVER_PLAN_PIPELINE_CHANGE_H_
#define COXSWAIN_SERVER_PLAN_PIPELINE_CHANGE_H_

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "schedule/plan.h"
#include "schedule/terms.h"

namespace coxswain::server {

// Which ranks a plan is for.
struct PlanRanks {
  int data = 0;      // that read data of their own; 0: not known
  int pipeline = 0;  // along pp; 0: not known
};

// Returns whether either has a pipeline: then a change from one to the other
// is to be checked.
bool ConcernsPipeline(const schedule::Terms& from, const schedule::Terms& to);

// Returns how many actions the largest schedule has that CheckPipelineChange
// makes; 0: it makes none.
int64_t ActionsToProve(const schedule::Plan& to, const PlanRanks& ranks);

// A proof of so many may be made where others wait for it: it took 4 ms at
// most, on a virtual machine of two cores.
inline constexpr int64_t kQuickProof = int64_t{1} << 14;

// A larger proof, of which there is one at a time: not ok() while there is
// another one. `taken` outlives it.
class ProofTurn {
 public:
  explicit ProofTurn(std::atomic<bool>* taken)
      : taken_(taken->exchange(true) ? nullptr : taken) {}
  ~ProofTurn() {
    if (ok()) taken_->store(false);
  }
  ProofTurn(const ProofTurn&) = delete;
  ProofTurn& operator=(const ProofTurn&) = delete;

  bool ok() const { return taken_ != nullptr; }

 private:
  std::atomic<bool>* const taken_;
};

// Checks that ranks which hold the stages that `from` gives them can follow
// `to`, and proves that its schedules come to their end. INVALID_ARGUMENT with
// the reason: they would hold other stages; or a schedule would be larger than
// one may be, or never end.
//
// Takes time and memory in proportion to the actions of a schedule, at most
// pipeline::kMaxActions; so no lock is to be held that others wait for, unless
// ActionsToProve is at most kQuickProof.
absl::Status CheckPipelineChange(const schedule::Terms& from,
                                 const schedule::Plan& to,
                                 const PlanRanks& ranks);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PLAN_PIPELINE_CHANGE_H_
