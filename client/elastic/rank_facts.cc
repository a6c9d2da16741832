#include "client/elastic/rank_facts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/comm/rank_values.h"
#include "client/reduce/agreement.h"

namespace coxswain {
namespace {

static_assert(std::is_trivially_copyable_v<RankFacts> &&
                  sizeof(RankFacts) % sizeof(int64_t) == 0,
              "facts travel as 64-bit numbers");
constexpr size_t kNumbers = sizeof(RankFacts) / sizeof(int64_t);

bool SameState(const RankFacts& a, const RankFacts& b) {
  return a.has_state == b.has_state && a.lineage == b.lineage &&
         a.trained == b.trained && a.progress == b.progress;
}

// Returns whether it is more worth going on with, among those of a lineage.
bool Ahead(const RankFacts& a, const RankFacts& b) {
  return std::tie(a.trained, a.progress) > std::tie(b.trained, b.progress);
}

// Returns whether the first of a lineage is, compared to the first of another
// one.
bool AheadOfOthers(const RankFacts& a, const RankFacts& b) {
  return std::tie(a.has_state, a.progress, a.trained) >
         std::tie(b.has_state, b.progress, b.trained);
}

// Returns the lowest rank of those that are ahead in their lineage. A rank
// without a state is one of its own.
std::vector<int> FirstOfLineages(const std::vector<RankFacts>& facts) {
  std::map<int64_t, int> by_lineage;
  std::vector<int> firsts;
  const auto size = static_cast<int>(facts.size());
  for (int rank = 0; rank < size; ++rank) {
    if (facts[rank].has_state == 0) {
      firsts.push_back(rank);
      continue;
    }
    int& first = by_lineage.emplace(facts[rank].lineage, rank).first->second;
    if (Ahead(facts[rank], facts[first])) first = rank;
  }
  for (const auto& [lineage, first] : by_lineage) firsts.push_back(first);
  // Of equals, the lowest rank is looked at first.
  std::sort(firsts.begin(), firsts.end());
  return firsts;
}

int SourceOf(const std::vector<RankFacts>& facts, const std::vector<int>& all) {
  int source = all.front();
  for (const int first : all) {
    if (AheadOfOthers(facts[first], facts[source])) source = first;
  }
  return source;
}

bool SameBits(const RankFacts& a, const RankFacts& b) {
  return a.tensors == b.tensors && a.digest == b.digest;
}

std::vector<int> InStepWith(const std::vector<RankFacts>& facts, int source) {
  std::vector<int> in_step;
  const auto size = static_cast<int>(facts.size());
  for (int rank = 0; rank < size; ++rank) {
    if (SameState(facts[rank], facts[source])) in_step.push_back(rank);
  }
  return in_step;
}

std::vector<int> OthersThan(const std::vector<RankFacts>& facts, int candidate,
                            const std::vector<int>& in_step) {
  std::vector<int> others;
  for (const int rank : in_step) {
    if (!SameBits(facts[rank], facts[candidate])) others.push_back(rank);
  }
  return others;
}

// Returns the lowest rank of the majority of them; -1: there is none.
int MajorityIn(const std::vector<RankFacts>& facts,
               const std::vector<int>& in_step) {
  for (const int candidate : in_step) {
    const size_t others = OthersThan(facts, candidate, in_step).size();
    if (2 * others < in_step.size()) return candidate;
  }
  return -1;
}

// Returns whether it has taken all of this state while it waited.
bool CaughtUpWith(const RankFacts& a, const RankFacts& source) {
  return a.caught_up != 0 && a.caught_up == source.lineage &&
         a.trained == source.trained && a.progress == source.progress &&
         SameBits(a, source);
}

// Makes the lowest rank of the majority the source, of those that are in its
// step. Returns whether there is one.
bool FollowMajority(const std::vector<RankFacts>& facts, RecoveryPlan* plan) {
  if (facts[plan->source].has_state == 0) return false;
  const std::vector<int> in_step = InStepWith(facts, plan->source);
  const int candidate = MajorityIn(facts, in_step);
  if (candidate < 0) return false;
  plan->source = candidate;
  const std::vector<int> others = OthersThan(facts, candidate, in_step);
  if (others.empty()) return true;
  plan->warnings.push_back(absl::StrCat(
      NameRanks(others), " had other bits than the other ",
      in_step.size() - others.size(), " ranks after the same step ",
      facts[candidate].step,
      ": damaged memory, wrong arithmetic, or a body that depends on the "
      "rank; replaced by the state of rank ",
      candidate));
  return true;
}

void WarnOfLineages(const std::vector<RankFacts>& facts,
                    const std::vector<int>& firsts, RecoveryPlan* plan) {
  const RankFacts& source = facts[plan->source];
  for (const int first : firsts) {
    const RankFacts& one = facts[first];
    if (one.has_state == 0 || one.lineage == source.lineage) continue;
    plan->warnings.push_back(absl::StrCat(
        "rank ", first, " and its peers have trained apart from the others, ",
        "from a beginning of their own, and were at step ", one.step,
        "; it is replaced by the state of rank ", plan->source, ", of step ",
        source.step));
  }
}

absl::Status CheckLayouts(const std::vector<RankFacts>& facts, int source,
                          int self) {
  std::vector<int> others;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (facts[rank].layout != facts[source].layout) {
      others.push_back(static_cast<int>(rank));
    }
  }
  if (others.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat(
      "the tensors of ", NameRanks(others), " have other sizes or types than ",
      "those of rank ", source,
      ", whose state all ranks continue from; start all workers with the same ",
      "model");
  // With nothing trained yet it is unknown whose model is meant.
  const bool at_fault = facts[source].has_state == 0 ||
                        facts[self].layout != facts[source].layout;
  return at_fault ? absl::FailedPreconditionError(what)
                  : absl::AbortedError(what);
}

absl::Status CheckNotLost(const std::vector<RankFacts>& facts, int source) {
  if (facts[source].has_state != 0) return absl::OkStatus();
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (facts[rank].recovered == 0) continue;
    return absl::DataLossError(absl::StrCat(
        "rank ", rank, " has trained before, but no rank has a whole state: ",
        "those that had one were lost while it was copied; start ",
        "the job again from a checkpoint"));
  }
  return absl::OkStatus();
}

// By rank: whether it has the source's state already.
std::vector<bool> PlanCopies(const std::vector<RankFacts>& facts,
                             bool has_majority, RecoveryPlan* plan) {
  const RankFacts& source = facts[plan->source];
  std::vector<bool> all_same(facts.size());
  plan->copies.resize(facts.size());
  plan->damaged.resize(facts.size());
  plan->copies_loose.resize(facts.size());
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    // States that belong to no generation yet may be anything.
    const bool in_step =
        source.has_state != 0 && SameState(facts[rank], source);
    plan->damaged[rank] =
        in_step && has_majority && !SameBits(facts[rank], source);
    const bool caught_up =
        source.has_state != 0 && CaughtUpWith(facts[rank], source);
    const bool same = (in_step && !plan->damaged[rank]) || caught_up;
    all_same[rank] = same;
    plan->copies[rank] = !same && static_cast<int>(rank) != plan->source;
    plan->copies_any |= plan->copies[rank];
    plan->copies_loose[rank] = same && facts[rank].loose != source.loose;
    plan->copies_any_loose |= plan->copies_loose[rank];
  }
  return all_same;
}

void WarnOfLooseBytes(const std::vector<RankFacts>& facts, RecoveryPlan* plan) {
  std::vector<int> others;
  for (size_t rank = 0; rank < plan->copies_loose.size(); ++rank) {
    // A newcomer has none of its own.
    if (!plan->copies_loose[rank] || facts[rank].caught_up != 0) continue;
    others.push_back(static_cast<int>(rank));
  }
  if (others.empty()) return;
  plan->warnings.push_back(
      absl::StrCat("the counters or positions of ", NameRanks(others),
                   " were not those of rank ", plan->source,
                   " after the same step; all ranks continue from the "
                   "latter's"));
}

HookRecoveryPlan PlanHookRecoveryOf(const std::vector<RankFacts>& facts,
                                    const RecoveryPlan& plan,
                                    const Mesh& mesh) {
  const RankFacts& source = facts[plan.source];
  std::vector<HookFacts> hooks(facts.size());
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    const RankFacts& one = facts[rank];
    hooks[rank].world = one.hook_world;
    hooks[rank].step = one.hook_step;
    hooks[rank].shared = one.hook_shared;
    hooks[rank].slice = one.hook_slice;
    hooks[rank].slices = one.hook_slices;
    hooks[rank].behind = plan.copies[rank] ? 1 : 0;
    const bool took_part =
        one.lineage == source.lineage && one.recovered >= source.trained;
    hooks[rank].took_part = took_part ? 1 : 0;
  }
  return PlanHookRecovery(hooks, mesh);
}

}  // namespace

absl::StatusOr<std::vector<RankFacts>> ExchangeFacts(Communicator& communicator,
                                                     const RankFacts& own,
                                                     absl::Duration timeout) {
  std::vector<int64_t> numbers(kNumbers);
  std::memcpy(numbers.data(), &own, sizeof(own));
  COXSWAIN_ASSIGN_OR_RETURN(numbers,
                            GatherValues(communicator, numbers, timeout));
  std::vector<RankFacts> facts(static_cast<size_t>(communicator.size()));
  // Its members have initial values, but no more than that.
  std::memcpy(static_cast<void*>(facts.data()), numbers.data(),
              facts.size() * sizeof(RankFacts));
  return facts;
}

void DropCaughtUpAlone(std::vector<RankFacts>* facts) {
  for (const RankFacts& one : *facts) {
    if (one.has_state != 0) return;
  }
  for (RankFacts& one : *facts) {
    if (one.caught_up == 0) continue;
    one.caught_up = one.trained = one.progress = 0;
  }
}

absl::StatusOr<RecoveryPlan> PlanRecovery(const std::vector<RankFacts>& facts,
                                          int rank, const Mesh& mesh) {
  RecoveryPlan plan;
  const std::vector<int> firsts = FirstOfLineages(facts);
  plan.source = SourceOf(facts, firsts);
  const bool has_majority = FollowMajority(facts, &plan);
  COXSWAIN_RETURN_IF_ERROR(CheckLayouts(facts, plan.source, rank));
  COXSWAIN_RETURN_IF_ERROR(CheckNotLost(facts, plan.source));
  const std::vector<bool> same = PlanCopies(facts, has_majority, &plan);
  COXSWAIN_RETURN_IF_ERROR(CheckSameBits(facts, plan.source, same));
  WarnOfLineages(facts, firsts, &plan);
  WarnOfLooseBytes(facts, &plan);
  plan.hook = PlanHookRecoveryOf(facts, plan, mesh);
  if (!plan.hook.warning.empty()) plan.warnings.push_back(plan.hook.warning);
  return plan;
}

std::vector<int> RanksInDispute(const std::vector<RankFacts>& facts) {
  const int source = SourceOf(facts, FirstOfLineages(facts));
  if (facts[source].has_state == 0) return {};
  std::vector<int> ranks = InStepWith(facts, source);
  if (MajorityIn(facts, ranks) >= 0) ranks.clear();
  return ranks;
}

absl::Status CheckSameBits(const std::vector<RankFacts>& facts, int source,
                           const std::vector<bool>& compared) {
  std::vector<int> tensors;
  std::vector<int> rest;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (!compared[rank]) continue;
    const auto number = static_cast<int>(rank);
    if (facts[rank].tensors != facts[source].tensors) tensors.push_back(number);
    if (facts[rank].digest != facts[source].digest) rest.push_back(number);
  }
  if (tensors.empty() && rest.empty()) return absl::OkStatus();
  std::string what;
  if (!tensors.empty()) {
    absl::StrAppend(&what, "the tensors of ", NameRanks(tensors));
  }
  if (!rest.empty()) {
    absl::StrAppend(&what, what.empty() ? "" : ", and ",
                    "the optimizer's state or the counters of ",
                    NameRanks(rest));
  }
  return absl::DataLossError(absl::StrCat(
      what, " are not those of rank ", source, " after the same step ",
      facts[source].step,
      ": the ranks have trained apart, or their memory is damaged; start the ",
      "job again from a checkpoint, with checksum_every=1 to find the step"));
}

}  // namespace coxswain
