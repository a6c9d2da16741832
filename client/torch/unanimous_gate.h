#ifndef COXSWAIN_CLIENT_TORCH_UNANIMOUS_GATE_H_
#define COXSWAIN_CLIENT_TORCH_UNANIMOUS_GATE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/schedule/step_gate.h"

namespace coxswain::torch {

// Another gate, but for
//   votes that all ranks are known to give alike, because they follow from the
//   averages: such a step is skipped even where votes do not count;
//   local steps, in which the ranks exchange nothing: they are not announced,
//   and every rank commits its own.
// Used by DistributedDataParallel.
//
// Threading: as StepGate; set_unanimous before the Decide that it is for,
// set_local before the Announce.
class UnanimousGate : public StepGate {
 public:
  // Outlives this one; null: there is no gate.
  void set_inner(StepGate* inner) { inner_ = inner; }
  StepGate* inner() const { return inner_; }
  void set_unanimous(bool unanimous) { unanimous_ = unanimous; }
  void set_local(bool local) { local_ = local; }

  absl::Status Announce(const StepTicket& ticket) override {
    unanimous_ = false;
    if (!local_) return inner_->Announce(ticket);
    inner_->BeginLocal(ticket);
    return absl::OkStatus();
  }
  absl::Status AwaitGrant() override {
    return local_ ? absl::OkStatus() : inner_->AwaitGrant();
  }
  absl::StatusOr<StepDecision> Decide(const StepVote& vote) override {
    if (local_) {
      inner_->EndLocal();
      return StepDecision();
    }
    COXSWAIN_ASSIGN_OR_RETURN(StepDecision decision, inner_->Decide(vote));
    if (unanimous_ && !vote.commit && decision.commit) {
      decision.commit = false;
      decision.reason = vote.reason;
    }
    return decision;
  }
  void NoteBucket(int bucket) override { inner_->NoteBucket(bucket); }
  void NoteExchange(const StepReport& report) override {
    inner_->NoteExchange(report);
  }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }
  absl::Duration patience() const override { return inner_->patience(); }

 private:
  StepGate* inner_ = nullptr;
  bool unanimous_ = false;
  bool local_ = false;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_UNANIMOUS_GATE_H_
