#include "schedule/pipeline/explain.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedule/pipeline/action.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/wait_graph.h"

namespace coxswain::pipeline {
namespace {

// Where a rank is known to be, at least: that is never later than where it is.
struct AtLeast {
  const IndexedSchedule* schedule = nullptr;  // null: not known
  int64_t step = 0;
  int action = 0;
  bool by_messages = false;  // others are further than its report allows
  bool silent = false;
  bool unfollowed = false;  // it has a place, in a schedule that is not known
  bool unclear = false;     // what it waits for
  size_t pipeline = 0;
  int list = 0;  // the number of it
  absl::Duration still = absl::InfiniteDuration();
};

std::string Rounded(absl::Duration duration) {
  const absl::Duration unit =
      duration < absl::Seconds(1)
          ? absl::Milliseconds(1)
          : (duration < absl::Minutes(1) ? absl::Milliseconds(100)
                                         : absl::Seconds(1));
  return absl::FormatDuration(absl::Floor(duration, unit));
}

absl::Duration MedianOf(const PipelinePlace& place, const Action& action) {
  for (const StagePasses& passes : place.passes) {
    if (passes.stage != action.stage) continue;
    switch (action.kind) {
      case ActionKind::kForward:
        return absl::Seconds(passes.forward);
      case ActionKind::kBackward:
        return absl::Seconds(passes.backward);
      case ActionKind::kBackwardInput:
        return absl::Seconds(passes.backward_input);
      case ActionKind::kBackwardWeight:
        return absl::Seconds(passes.backward_weight);
      default:
        return absl::ZeroDuration();
    }
  }
  return absl::ZeroDuration();
}

// How far a rank is: step and action; all ends of a step are the same.
using Progress = std::pair<int64_t, int>;
constexpr int kEnd = std::numeric_limits<int>::max();
constexpr Progress kNotBegun = {-1, 0};

class Search {
 public:
  Search(const ExplainInput& input, SchedulesOfJob* schedules)
      : input_(input),
        schedules_(schedules),
        pipelines_(input.mesh.GroupsAlong(input.mesh.AxesOf({"pp"}))),
        exchanges_(input.mesh.GroupsAlong(input.mesh.AxesOf({"dp", "shard"}))),
        partners_(input.mesh.GroupsAlong(input.mesh.AxesOf({"tp"}))),
        places_(input.ranks.size()),
        waits_(static_cast<int>(input.ranks.size())) {}

  Explanation Run() {
    const size_t count = input_.ranks.size();
    result_.waits_for.resize(count);
    result_.in.resize(count);
    if (static_cast<size_t>(input_.mesh.size()) != count ||
        schedules_->ranks() != input_.mesh.extent("pp")) {
      return std::move(result_);
    }
    for (size_t i = 0; i < pipelines_.size(); ++i) {
      for (size_t list = 0; list < pipelines_[i].size(); ++list) {
        AtLeast& at = At(pipelines_[i][list]);
        at.pipeline = i;
        at.list = static_cast<int>(list);
      }
    }
    for (int rank = 0; rank < static_cast<int>(count); ++rank) Place(rank);
    for (const std::vector<int>& ranks : pipelines_) Infer(ranks);
    for (const std::vector<int>& ranks : pipelines_) NameActions(ranks);
    for (const std::vector<int>& ranks : pipelines_) AddTransfers(ranks);
    for (const std::vector<int>& ranks : exchanges_) AddExchanges(ranks);
    for (const std::vector<int>& ranks : pipelines_) AddEnds(ranks);
    for (const std::vector<int>& ranks : partners_) AddPartners(ranks);
    result_.waits_for = waits_.Lowest(Explanation::kMaxWaits);
    NameHolders();
    return std::move(result_);
  }

 private:
  const RankPlace& Of(int rank) const {
    return input_.ranks[static_cast<size_t>(rank)];
  }
  AtLeast& At(int rank) { return places_[static_cast<size_t>(rank)]; }
  const std::vector<int>& PipelineOf(int rank) {
    return pipelines_[At(rank).pipeline];
  }
  const Schedule::Actions& ActionsOf(int rank) {
    return At(rank).schedule->List(At(rank).list);
  }
  const Action& ActionAt(int rank, int action) {
    return ActionsOf(rank)[static_cast<size_t>(action)];
  }
  bool Known(int rank) { return At(rank).schedule != nullptr; }
  bool AtEnd(int rank) {
    return At(rank).action >= static_cast<int>(ActionsOf(rank).size());
  }
  // Whether a rank has come to this place of its list, or is past it.
  bool Reached(int rank, int64_t step, int action) {
    return At(rank).step > step ||
           (At(rank).step == step && At(rank).action >= action);
  }
  Progress ProgressOf(int rank) {
    if (!Known(rank)) return kNotBegun;
    return {At(rank).step, AtEnd(rank) ? kEnd : At(rank).action};
  }

  void Place(int rank) {
    const RankPlace& known = Of(rank);
    AtLeast& at = At(rank);
    at.silent = known.silence >= input_.silent_after;
    if (!known.live || !known.place.has_value() || known.place->step < 0) {
      return;
    }
    const IndexedSchedule* const schedule =
        schedules_->Of(known.place->micro_batches, known.place->schedule);
    at.unfollowed = schedule == nullptr;
    if (schedule == nullptr) return;
    at.schedule = schedule;
    at.step = known.place->step;
    at.action =
        std::min(known.place->action, static_cast<int>(ActionsOf(rank).size()));
  }

  // What a rank has received was sent: its sender is past that.
  void Infer(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (!Known(rank)) continue;
      const AtLeast at = At(rank);
      for (const auto& [list, past] : at.schedule->SentTo(at.list, at.action)) {
        const int sender = ranks[static_cast<size_t>(list)];
        if (!Known(sender) || Reached(sender, at.step, past)) continue;
        AtLeast& behind = At(sender);
        behind.schedule = at.schedule;
        behind.step = at.step;
        behind.action = past;
        behind.by_messages = true;
      }
    }
  }

  // The rank at the other end of a transfer.
  int OtherEnd(int rank, const Action& transfer) {
    return PipelineOf(
        rank)[static_cast<size_t>(At(rank).schedule->OtherEnd(transfer))];
  }

  // Whether the message of a rank's receive has been sent.
  bool IsSent(int rank, int action) {
    const AtLeast& at = At(rank);
    const int sender = OtherEnd(rank, ActionAt(rank, action));
    return Known(sender) &&
           Reached(sender, at.step,
                   at.schedule->PartnerOf(at.list, action) + 1);
  }

  // Returns the action to name: of a rank whose report is not of now, the
  // first pass that it may be in.
  int ActionOf(int rank) {
    const AtLeast& at = At(rank);
    const Schedule::Actions& list = ActionsOf(rank);
    if (!at.silent && !at.by_messages) return at.action;
    for (int i = at.action; i < static_cast<int>(list.size()); ++i) {
      if (!IsTransfer(list[i].kind)) return i;
      if (IsReceive(list[i].kind) && !IsSent(rank, i)) break;
    }
    return at.action;
  }

  void NameActions(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (!Known(rank)) continue;
      const int action = ActionOf(rank);
      const Schedule::Actions& list = ActionsOf(rank);
      const bool in_step = action < static_cast<int>(list.size());
      result_.in[static_cast<size_t>(rank)] =
          in_step ? ToString(list[action]) : kBetweenSteps;
    }
  }

  void Wait(int rank, int other) {
    if (rank != other && Of(other).live) waits_.Wait(rank, other);
  }

  void AddTransfers(const std::vector<int>& ranks) {
    std::vector<int> stopped;  // that others wait for, though it had sent
    for (const int rank : ranks) {
      if (!Known(rank) || AtEnd(rank)) continue;
      AtLeast& at = At(rank);
      const Action& action = ActionAt(rank, at.action);
      if (!IsTransfer(action.kind)) continue;
      const int other = OtherEnd(rank, action);
      at.unclear = At(other).unfollowed;
      if (at.unclear) continue;
      if (IsReceive(action.kind)) {
        const bool sent = IsSent(rank, at.action);
        const bool held_back = sent && At(other).silent && !at.silent;
        if (!sent || held_back) Wait(rank, other);
        if (held_back) stopped.push_back(other);
        continue;
      }
      if (at.silent) continue;
      const int receive =
          IsWaitForSend(action.kind)
              ? at.schedule->PartnerOf(at.list, at.action)
              : at.schedule->ReceiveBefore(at.list, at.action, input_.capacity);
      if (receive < 0) continue;
      // Without a buffer, both are at it, and the sender is the one to move.
      const int taken = input_.capacity > 0 ? receive + 1 : receive;
      if (!Known(other) || !Reached(other, at.step, taken)) Wait(rank, other);
    }
    for (const int rank : stopped) waits_.WaitForNone(rank);
  }

  // `waiters` are of these ranks, and each waits for those of them that are not
  // as far as it needs them.
  void WaitForLate(const std::vector<int>& ranks,
                   const std::vector<std::pair<int, Progress>>& waiters) {
    if (waiters.empty()) return;
    bool unclear = false;
    std::vector<std::pair<Progress, int>> by_progress;
    for (const int rank : ranks) {
      if (!Of(rank).live) continue;
      if (At(rank).unfollowed) {
        unclear = true;
      } else {
        by_progress.emplace_back(ProgressOf(rank), rank);
      }
    }
    std::sort(by_progress.begin(), by_progress.end());
    std::vector<int> order;
    order.reserve(by_progress.size());
    for (const auto& one : by_progress) order.push_back(one.second);
    const int number = waits_.AddOrder(order);
    for (const auto& [rank, needed] : waiters) {
      const auto late = std::partition_point(
          by_progress.begin(), by_progress.end(),
          [&limit = needed](const auto& one) { return one.first < limit; });
      const auto count = static_cast<int>(late - by_progress.begin());
      if (count > 0) {
        waits_.WaitForFirst(rank, number, count);
      } else if (unclear) {
        At(rank).unclear = true;
      }
    }
  }

  // `ranks` have the same stages.
  void AddExchanges(const std::vector<int>& ranks) {
    std::vector<std::pair<int, Progress>> waiters;
    for (const int rank : ranks) {
      if (!Known(rank)) continue;
      const bool exchanges =
          AtEnd(rank) ||
          ActionAt(rank, At(rank).action).kind == ActionKind::kReduceGradient ||
          ActionAt(rank, At(rank).action).kind ==
              ActionKind::kWaitReduceGradient;
      if (exchanges) waiters.emplace_back(rank, ProgressOf(rank));
    }
    WaitForLate(ranks, waiters);
  }

  // Those that have exchanged: the next step begins when all have.
  void AddEnds(const std::vector<int>& ranks) {
    std::vector<int> begun;
    std::vector<std::pair<int, Progress>> waiters;
    for (const int rank : ranks) {
      if (!Known(rank)) continue;
      begun.push_back(rank);
      if (!AtEnd(rank) || waits_.Waits(rank) || At(rank).unclear) continue;
      waiters.emplace_back(rank, ProgressOf(rank));
    }
    WaitForLate(begun, waiters);
  }

  // `ranks` divide each layer among them: none ends a pass before all are in
  // it. Which of those that are holds up the others, places do not show, unless
  // it is silent.
  void AddPartners(const std::vector<int>& ranks) {
    Progress least;
    int late = -1;    // the first of those that have come least far
    int silent = -1;  // of these
    for (const int rank : ranks) {
      if (!Of(rank).live || At(rank).unfollowed) continue;
      const Progress progress = ProgressOf(rank);
      if (late < 0 || progress < least) {
        least = progress;
        late = rank;
        silent = -1;
      }
      if (progress == least && silent < 0 && At(rank).silent) silent = rank;
    }
    for (const int rank : ranks) {
      if (!Known(rank) || AtEnd(rank) || At(rank).silent ||
          waits_.Waits(rank) ||
          !IsCompute(ActionAt(rank, At(rank).action).kind)) {
        continue;
      }
      const Progress own = ProgressOf(rank);
      if (late >= 0 && least < own) {
        Wait(rank, late);
      } else if (silent >= 0 && least == own) {
        Wait(rank, silent);
      }
    }
  }

  void NameHolders() {
    NoteMoves(pipelines_);
    NoteMoves(exchanges_);
    NoteMoves(partners_);
    const auto waiters = waits_.DirectWaiters([this](int rank) {
      return Of(rank).place.has_value() ? Of(rank).place->in_it
                                        : absl::ZeroDuration();
    });
    std::vector<Holder>& holders = result_.holders;
    for (size_t i = 0; i < waiters.size(); ++i) {
      const int rank = static_cast<int>(i);
      if (waiters[i].count == 0 || waits_.Waits(rank) || At(rank).unclear) {
        continue;
      }
      holders.push_back(HolderAt(rank, waiters[i]));
    }
    if (holders.size() > Explanation::kMaxHolders) {
      std::stable_sort(
          holders.begin(), holders.end(),
          [](const Holder& a, const Holder& b) { return a.since > b.since; });
      holders.resize(Explanation::kMaxHolders);
    }
    for (Holder& holder : holders) {
      holder.waiters = waits_.CountWaiters(holder.rank);
      holder.sentence = SentenceOf(holder);
    }
    std::stable_sort(
        holders.begin(), holders.end(),
        [](const Holder& a, const Holder& b) { return a.waiters > b.waiters; });
  }

  // Notes of each rank how long all of its group have not moved.
  void NoteMoves(const std::vector<std::vector<int>>& groups) {
    for (const std::vector<int>& ranks : groups) {
      absl::Duration still = absl::InfiniteDuration();
      for (const int rank : ranks) {
        if (!Known(rank) || At(rank).silent) continue;
        still = std::min(still, Of(rank).place->in_it);
      }
      for (const int rank : ranks) {
        At(rank).still = std::min(At(rank).still, still);
      }
    }
  }

  Holder HolderAt(int rank, const WaitGraph::Waiters& waiters) {
    Holder holder;
    holder.rank = rank;
    holder.directly = waiters.count;
    // It holds up the others since they wait for it, whatever it did before.
    holder.since = waiters.longest;
    if (!Known(rank)) return holder;
    const PipelinePlace& place = *Of(rank).place;
    holder.step = At(rank).step;
    holder.since = std::min({waiters.longest, place.in_it, FreeFor(rank)});
    const int action = ActionOf(rank);
    if (action < static_cast<int>(ActionsOf(rank).size())) {
      const Action& in = ActionAt(rank, action);
      holder.stage = in.stage;
      holder.action = ToString(in);
      holder.median = MedianOf(place, in);
    }
    return holder;
  }

  // Returns no less than for how long a rank that waits for none has had what
  // it waited for before, as far as the ranks that it had it of have not moved
  // since: once nothing moves, that is long.
  absl::Duration FreeFor(int rank) {
    if (AtEnd(rank)) return At(rank).still;
    const Action& action = ActionAt(rank, At(rank).action);
    if (!IsTransfer(action.kind)) return absl::InfiniteDuration();
    const int other = OtherEnd(rank, action);
    return Known(other) && !At(other).silent ? Of(other).place->in_it
                                             : absl::InfiniteDuration();
  }

  std::string SentenceOf(const Holder& holder) {
    const std::string place =
        input_.place_of ? input_.place_of(holder.rank) : "";
    const std::string who =
        holder.stage >= 0
            ? absl::StrCat("stage ", holder.stage, " (rank ", holder.rank,
                           place.empty() ? "" : ": ", place, ")")
            : absl::StrCat("rank ", holder.rank,
                           place.empty() ? "" : absl::StrCat(" (", place, ")"));
    const AtLeast& at = At(holder.rank);
    const std::string median =
        holder.median > absl::ZeroDuration()
            ? absl::StrCat(" (median ", Rounded(holder.median), ")")
            : "";
    std::string what;
    if (!Known(holder.rank)) {
      const std::string silence =
          at.silent ? absl::StrCat("has sent nothing for ",
                                   Rounded(Of(holder.rank).silence), ", and ")
                    : "";
      what = Of(holder.rank).heard
                 ? absl::StrCat(silence, "has not begun a step of its pipeline")
                 : "has reported no place in its pipeline";
    } else if (at.silent) {
      what = absl::StrCat(
          "has sent nothing for ", Rounded(Of(holder.rank).silence),
          ", and by its last report and messages is ", InText(holder), median);
    } else {
      what = absl::StrCat("has been ", InText(holder), " for ",
                          Rounded(holder.since), median);
    }
    return absl::StrCat(who, " ", what, "; ", holder.waiters,
                        holder.waiters == 1 ? " rank waits" : " ranks wait",
                        " for it, ", holder.directly, " of them directly");
  }

  std::string InText(const Holder& holder) const {
    return holder.action.empty() ? kBetweenSteps
                                 : absl::StrCat("in ", holder.action);
  }

  const ExplainInput& input_;
  SchedulesOfJob* const schedules_;
  // By number of their lists.
  const std::vector<std::vector<int>> pipelines_;
  const std::vector<std::vector<int>> exchanges_;
  const std::vector<std::vector<int>> partners_;
  std::vector<AtLeast> places_;
  WaitGraph waits_;
  Explanation result_;
};

}  // namespace

const Holder* Explanation::HolderOf(int rank) const {
  for (const Holder& holder : holders) {
    if (holder.rank == rank) return &holder;
  }
  return nullptr;
}

Explanation ExplainPipeline(const ExplainInput& input,
                            SchedulesOfJob* schedules) {
  schedules->Begin();
  return Search(input, schedules).Run();
}

}  // namespace coxswain::pipeline
