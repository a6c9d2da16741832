#include "client/elastic/hook_recovery.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/elastic/broadcast_bytes.h"
#include "client/elastic/hook_errors.h"
#include "client/reduce/hybrid_hook.h"

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

// Returns the first of those with the most steps; -1: no rank has a state that
// others may take over.
int NewestOf(const std::vector<HookFacts>& facts) {
  int newest = -1;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (facts[rank].behind != 0 || facts[rank].world == 0) continue;
    if (newest < 0 || facts[rank].step > facts[newest].step) {
      newest = static_cast<int>(rank);
    }
  }
  return newest;
}

bool SameSlice(const HookFacts& a, const HookFacts& b) {
  return a.slice == b.slice && a.slices == b.slices;
}

bool Shares(const HookFacts& newest, const Mesh& mesh) {
  return mesh.extent("shard") == newest.slices && mesh.extent("dp") > 1;
}

// Returns whose state a rank goes on with, of those that are as new as the
// newest one; -1: no rank has it.
int SourceFor(int rank, const std::vector<HookFacts>& facts,
              const HookFacts& newest, const Mesh& mesh) {
  HookFacts wanted;
  wanted.slices = newest.slices;
  if (newest.slices > 0) {
    if (!Shares(newest, mesh)) return -1;
    wanted.slice = mesh.CoordinateOf(rank, "shard");
  }
  for (size_t other = 0; other < facts.size(); ++other) {
    const HookFacts& one = facts[other];
    if (one.behind == 0 && one.world > 0 && one.step == newest.step &&
        SameSlice(one, wanted)) {
      return static_cast<int>(other);
    }
  }
  return -1;
}

std::string WhyAnew(int rank, const HookFacts& newest, const Mesh& mesh) {
  const std::string effect =
      ": the hook begins anew, and what it had not sent is lost, once";
  if (!Shares(newest, mesh)) {
    return absl::StrCat("the hook's state of step ", newest.step,
                        " is that of "
                        "slices of ",
                        newest.slices, " ranks, and the mesh is \"",
                        mesh.ToString(), "\" now", effect);
  }
  return absl::StrCat("no rank that is left has the hook's state of step ",
                      newest.step, " of the slices that rank ", rank, " (",
                      mesh.Describe(rank), ") has now", effect);
}

// Returns the ranks whose state some rank copies, ascending.
std::set<int> CopiedFrom(const HookRecoveryPlan& plan) {
  std::set<int> sources;
  for (size_t rank = 0; rank < plan.copies.size(); ++rank) {
    if (plan.copies[rank]) sources.insert(plan.sources[rank]);
  }
  return sources;
}

}  // namespace

HookFacts HookFactsOf(const std::optional<HookState>& own, int own_world) {
  HookFacts facts;
  if (!own) return facts;
  facts.world = own_world;
  facts.step = own->step;
  facts.shared = SharedChecksum(*own);
  const HybridSlice slice = HybridSliceOf(*own);
  facts.slice = slice.slice;
  facts.slices = slice.slices;
  return facts;
}

HookRecoveryPlan PlanHookRecovery(const std::vector<HookFacts>& facts,
                                  const Mesh& mesh) {
  HookRecoveryPlan plan;
  plan.copies.resize(facts.size());
  plan.keeps_errors.resize(facts.size());
  const int newest = NewestOf(facts);
  if (newest < 0) return plan;
  const auto size = static_cast<int>(facts.size());
  for (int rank = 0; rank < size; ++rank) {
    const int source = SourceFor(rank, facts, facts[newest], mesh);
    if (source < 0) {
      plan.sources.clear();
      plan.warning = WhyAnew(rank, facts[newest], mesh);
      return plan;
    }
    plan.sources.push_back(source);
  }
  int64_t keep = 0;
  int64_t shares = 0;  // that the errors had, when nothing was lost of them
  for (int rank = 0; rank < size; ++rank) {
    const HookFacts& one = facts[rank];
    const HookFacts& source = facts[plan.sources[rank]];
    const bool has = one.world > 0 && SameSlice(one, source);
    plan.copies[rank] = !has || one.shared != source.shared;
    plan.keeps_errors[rank] = has && one.took_part != 0;
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
  if (plan.sources.empty()) return recovered;
  const auto rank = static_cast<size_t>(communicator.rank());
  bool keeps = plan.keeps_errors[rank];
  std::string bytes;
  for (const int source : CopiedFrom(plan)) {
    std::string sent;
    if (communicator.rank() == source) {
      sent = SerializeHookState(**recovery.own);
    }
    const bool wants = plan.copies[rank] && plan.sources[rank] == source;
    COXSWAIN_ASSIGN_OR_RETURN(
        sent, BroadcastBytes(communicator, sent, source, wants,
                             recovery.max_bytes, recovery.timeout));
    if (wants) bytes = std::move(sent);
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
