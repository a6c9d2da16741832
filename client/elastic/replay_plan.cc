#include "client/elastic/replay_plan.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/rank_values.h"
#include "client/reduce/agreement.h"

namespace coxswain {
namespace {

static_assert(std::is_trivially_copyable_v<ReplayFacts> &&
                  sizeof(ReplayFacts) % sizeof(int64_t) == 0,
              "facts travel as 64-bit numbers");
constexpr size_t kReplayNumbers = sizeof(ReplayFacts) / sizeof(int64_t);

// Returns whether the tensors tell the ranks apart; otherwise the digests do,
// which may depend on more than what the steps compute.
bool TensorsDiffer(const std::vector<int>& ranks,
                   const std::vector<StateBits>& had) {
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return had[static_cast<size_t>(rank)].tensors !=
           had[static_cast<size_t>(ranks.front())].tensors;
  });
}

bool SameOf(const StateBits& a, const StateBits& b, bool tensors) {
  return tensors ? a.tensors == b.tensors : a.digest == b.digest;
}

// Returns whether these ranks had come to this state in a replay of it.
bool WasReplayed(const std::vector<RankFacts>& facts,
                 const std::vector<int>& disputed,
                 const std::vector<ReplayFacts>& replays) {
  return std::all_of(disputed.begin(), disputed.end(), [&](int rank) {
    const RankFacts& one = facts[static_cast<size_t>(rank)];
    const ReplayFacts& replay = replays[static_cast<size_t>(rank)];
    return replay.generation != 0 && replay.generation == one.recovered &&
           replay.progress == one.progress;
  });
}

absl::Status Repeated(const std::vector<RankFacts>& facts,
                      const std::vector<int>& disputed,
                      const std::vector<ReplayFacts>& replays) {
  std::vector<StateBits> had(facts.size());
  for (size_t rank = 0; rank < had.size(); ++rank)
    had[rank] = replays[rank].had;
  const bool tensors = TensorsDiffer(disputed, had);
  std::vector<int> same;
  std::vector<int> changed;
  for (const int rank : disputed) {
    const auto at = static_cast<size_t>(rank);
    const StateBits now = {facts[at].tensors, facts[at].digest};
    (SameOf(had[at], now, tensors) ? same : changed).push_back(rank);
  }
  const auto first = static_cast<size_t>(disputed.front());
  std::string what = absl::StrCat(
      NameRanks(disputed), " hold different bits after the same step ",
      facts[first].step, ", and did before the steps from ",
      replays[first].from_step, " on were replayed: ");
  if (changed.empty()) {
    absl::StrAppend(
        &what,
        "each had the bits again that it had had, so this is no transient "
        "fault; look for a body that depends on the rank, for kernels that "
        "depend on the processor (set ATEN_CPU_CAPABILITY to the same value on "
        "all hosts), and for a processor that computes wrongly");
  } else if (same.empty()) {
    absl::StrAppend(
        &what,
        "none had the bits again that it had had, so the steps do not give the "
        "same bits twice; look for random numbers that do not come from the "
        "counters, and for kernels that add in any order");
  } else {
    absl::StrAppend(&what, NameRanks(same), " had the same bits again, and ",
                    NameRanks(changed),
                    " others; look at the memory and the processor of the "
                    "latter");
  }
  return absl::DataLossError(
      absl::StrCat(what, ", and start the job again from a checkpoint of step ",
                   replays[first].from_step, " or before"));
}

// The copies of one version.
struct Copies {
  CopyFacts first;
  std::vector<int> ranks;
  bool confirmed = false;
  bool same = true;
};

std::vector<Copies> CopiesByVersion(const std::vector<ReplayFacts>& replays,
                                    int64_t lineage) {
  std::vector<Copies> all;
  for (size_t rank = 0; rank < replays.size(); ++rank) {
    for (const CopyFacts& copy : {replays[rank].known, replays[rank].waiting}) {
      if (copy.intact == 0 || copy.version.lineage != lineage) continue;
      const auto found =
          std::find_if(all.begin(), all.end(), [&](const Copies& other) {
            return other.first.version == copy.version;
          });
      Copies& copies =
          found != all.end() ? *found : all.emplace_back(Copies{copy, {}});
      copies.ranks.push_back(static_cast<int>(rank));
      copies.confirmed |= copy.confirmed != 0;
      copies.same &= copy.tensors == copies.first.tensors;
    }
  }
  return all;
}

std::tuple<int64_t, int64_t> OrderOf(const StateVersion& version) {
  return {version.trained, version.progress};
}

// Returns the newest ones that can be gone back to; null: none.
const Copies* Newest(const std::vector<Copies>& all, const RankFacts& state,
                     const std::vector<int>& disputed, bool tensors_differ) {
  const Copies* newest = nullptr;
  for (const Copies& copies : all) {
    // One that waits was confirmed for no rank, so all are to have it; and
    // what is compared of it are the tensors.
    const bool known = copies.confirmed ||
                       (tensors_differ &&
                        std::includes(copies.ranks.begin(), copies.ranks.end(),
                                      disputed.begin(), disputed.end()));
    const auto order = OrderOf(copies.first.version);
    if (!copies.same || !known ||
        order > OrderOf({state.lineage, state.trained, state.progress})) {
      continue;
    }
    if (newest == nullptr || order > OrderOf(newest->first.version)) {
      newest = &copies;
    }
  }
  return newest;
}

// One that cannot go back is not to come with the disputed state again, should
// it be left alone while it copies another one's.
void PlanWhoGoesBack(const std::vector<RankFacts>& facts, const Copies& copies,
                     ReplayPlan* plan) {
  plan->goes_back.resize(facts.size());
  plan->drops.resize(facts.size());
  for (const int rank : copies.ranks) {
    plan->goes_back[static_cast<size_t>(rank)] = true;
  }
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    plan->drops[rank] = !plan->goes_back[rank] && facts[rank].has_state != 0 &&
                        facts[rank].lineage == copies.first.version.lineage;
  }
}

}  // namespace

absl::StatusOr<std::vector<ReplayFacts>> ExchangeReplayFacts(
    Communicator& communicator, const ReplayFacts& own,
    absl::Duration timeout) {
  std::vector<int64_t> numbers(kReplayNumbers);
  std::memcpy(numbers.data(), &own, sizeof(own));
  COXSWAIN_ASSIGN_OR_RETURN(numbers,
                            GatherValues(communicator, numbers, timeout));
  std::vector<ReplayFacts> facts(static_cast<size_t>(communicator.size()));
  std::memcpy(static_cast<void*>(facts.data()), numbers.data(),
              facts.size() * sizeof(ReplayFacts));
  return facts;
}

absl::StatusOr<ReplayPlan> PlanReplay(const std::vector<RankFacts>& facts,
                                      const std::vector<int>& disputed,
                                      const std::vector<ReplayFacts>& replays,
                                      int64_t max_replays,
                                      const absl::Status& otherwise) {
  if (WasReplayed(facts, disputed, replays)) {
    return Repeated(facts, disputed, replays);
  }
  const RankFacts& state = facts[static_cast<size_t>(disputed.front())];
  std::vector<StateBits> had;
  for (const RankFacts& one : facts) had.push_back({one.tensors, one.digest});
  const std::vector<Copies> all = CopiesByVersion(replays, state.lineage);
  const Copies* const copies =
      Newest(all, state, disputed, TensorsDiffer(disputed, had));
  if (copies == nullptr) return otherwise;
  ReplayPlan plan;
  ReplayDispute& dispute = plan.dispute;
  for (const ReplayFacts& one : replays) {
    dispute.replays = std::max(dispute.replays, one.replays);
  }
  ++dispute.replays;
  if (dispute.replays > max_replays) {
    return absl::DataLossError(absl::StrCat(
        NameRanks(disputed), " hold different bits after the same step ",
        state.step, ", once more after ", max_replays,
        " replays in a row; look at the memory and the processors of these "
        "ranks, and start the job again from a checkpoint of step ",
        copies->first.step, " or before"));
  }
  dispute.from = copies->first.version;
  dispute.progress = state.progress;
  dispute.step = state.step;
  dispute.ranks = disputed;
  dispute.had = std::move(had);
  dispute.from_step = copies->first.step;
  PlanWhoGoesBack(facts, *copies, &plan);
  plan.warning = absl::StrCat(
      NameRanks(disputed), " had different bits after the same step ",
      state.step, ", and no majority the same: all go back to step ",
      dispute.from_step,
      ", of which they had the same bits, and take the steps since then again; "
      "the rank whose bits are others then was wrong");
  return plan;
}

std::vector<int> RanksThatWereWrong(const ReplayDispute& dispute) {
  const bool tensors = TensorsDiffer(dispute.ranks, dispute.had);
  std::vector<int> wrong;
  for (const int rank : dispute.ranks) {
    const StateBits& had = dispute.had[static_cast<size_t>(rank)];
    if (!SameOf(had, *dispute.now, tensors)) wrong.push_back(rank);
  }
  if (wrong.size() == dispute.ranks.size()) wrong.clear();
  return wrong;
}

}  // namespace coxswain
