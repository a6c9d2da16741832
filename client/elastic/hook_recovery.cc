#include "client/elastic/hook_recovery.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/elastic/broadcast_bytes.h"
#include "client/elastic/hook_errors.h"

namespace coxswain {
namespace {

double ErrorScale(const HookRecovery& recovery, const HookState& state,
                  bool keeps, int world_size) {
  if (!keeps) return 0;
  const double scale =
      static_cast<double>(world_size) / static_cast<double>(recovery.own_world);
  // The hook would drop them anyway; all ranks ask for it.
  const bool drops = recovery.plan.lost_errors || scale != 1;
  return drops && ErrorsBelongTogether(state) ? 0 : scale;
}

}  // namespace

HookFacts HookFactsOf(const std::optional<HookState>& own, int own_world) {
  HookFacts facts;
  if (!own) return facts;
  facts.world = own_world;
  facts.step = own->step;
  facts.shared = SharedChecksum(*own);
  return facts;
}

HookRecoveryPlan PlanHookRecovery(const std::vector<HookFacts>& facts) {
  HookRecoveryPlan plan;
  plan.copies.resize(facts.size());
  plan.keeps_errors.resize(facts.size());
  const auto size = static_cast<int>(facts.size());
  for (int rank = 0; rank < size; ++rank) {
    if (facts[rank].behind != 0 || facts[rank].world == 0) continue;
    if (plan.source < 0 || facts[rank].step > facts[plan.source].step) {
      plan.source = rank;
    }
  }
  if (plan.source < 0) return plan;
  const HookFacts& source = facts[plan.source];
  int64_t keep = 0;
  int64_t shares = 0;  // that the errors had, when nothing was lost of them
  for (int rank = 0; rank < size; ++rank) {
    const HookFacts& one = facts[rank];
    plan.copies[rank] = one.world == 0 || one.shared != source.shared;
    plan.copies_any |= plan.copies[rank];
    plan.keeps_errors[rank] = one.world > 0 && one.took_part != 0;
    if (!plan.keeps_errors[rank]) continue;
    ++keep;
    shares = std::max(shares, one.world);
  }
  plan.lost_errors = keep < shares;
  return plan;
}

absl::StatusOr<RecoveredHook> RecoverHook(Communicator& communicator,
                                          const HookRecovery& recovery) {
  RecoveredHook recovered;
  const HookRecoveryPlan& plan = recovery.plan;
  if (plan.source < 0) return recovered;
  const auto rank = static_cast<size_t>(communicator.rank());
  bool keeps = plan.keeps_errors[rank];
  std::string bytes;
  if (plan.copies_any) {
    if (communicator.rank() == plan.source) {
      bytes = SerializeHookState(**recovery.own);
    }
    COXSWAIN_ASSIGN_OR_RETURN(
        bytes,
        BroadcastBytes(communicator, bytes, plan.source, plan.copies[rank],
                       recovery.max_bytes, recovery.timeout));
  }
  if (plan.copies[rank]) {
    absl::StatusOr<HookState> shared = ParseHookState(bytes);
    if (!shared.ok()) {
      const absl::Status failed = WithPrefix(
          absl::StrCat("recovery: rank ", rank, ", reading the hook's state: "),
          shared.status());
      // The peers wait for collectives that this rank will not start.
      communicator.Abort(failed.message());
      return failed;
    }
    keeps = keeps && (*recovery.own)->spec == shared->spec;
    // Without errors of its own it takes the source's, times zero: their
    // names show a hook what it would have.
    recovered.state = keeps ? WithErrorsOf(*std::move(shared), **recovery.own)
                            : *std::move(shared);
  } else {
    recovered.state = *recovery.own;
  }
  recovered.error_scale =
      ErrorScale(recovery, *recovered.state, keeps, communicator.size());
  return recovered;
}

}  // namespace coxswain
