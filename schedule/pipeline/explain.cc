#include "schedule/pipeline/explain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedule/pipeline/generate.h"

namespace coxswain::pipeline {
namespace {

// Where a rank is known to be, at least: that is never later than where it is.
struct AtLeast {
  const Schedule* schedule = nullptr;  // null: not known
  int64_t step = 0;
  int action = 0;
  bool by_messages = false;  // others are further than its report allows
  bool silent = false;
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

// The transfers of a schedule by channel, in the order of their lists.
class Channels {
 public:
  explicit Channels(const Schedule& schedule)
      : schedule_(schedule), ends_(2 * schedule.stages() + 2) {
    for (const Schedule::Actions& list : schedule.of_rank()) {
      for (size_t at = 0; at < list.size(); ++at) {
        const Action& action = list[at];
        if (!IsSend(action.kind) && !IsReceive(action.kind)) continue;
        Ends& ends = ends_[ChannelOf(action)];
        (IsSend(action.kind) ? ends.sends : ends.receives)
            .push_back(static_cast<int>(at));
      }
    }
  }

  // The number of the list at the other end of a transfer.
  int OtherEnd(const Action& action) const {
    const int channel = ChannelOf(action);
    const int sender = channel / 2;
    return schedule_.rank_of_stage(
        IsReceive(action.kind) ? sender : sender + (channel % 2 == 0 ? 1 : -1));
  }
  // Returns the place of the matching send of a receive, and of the receive of
  // a message so many before that of a send; -1: there is none.
  int SendOf(const Action& receive) const {
    return Find(receive, receive.kind == ActionKind::kReceiveForward
                             ? ActionKind::kSendForward
                             : ActionKind::kSendBackward);
  }
  int ReceiveBefore(const Action& send, int at, int messages) const {
    const Ends& ends = ends_[ChannelOf(send)];
    const auto found = std::find(ends.sends.begin(), ends.sends.end(), at);
    const auto before = found - ends.sends.begin() - messages;
    return before < 0 || before >= static_cast<int64_t>(ends.receives.size())
               ? -1
               : ends.receives[static_cast<size_t>(before)];
  }
  int ReceiveOf(const Action& wait) const {
    return Find(wait, wait.kind == ActionKind::kWaitSendForward
                          ? ActionKind::kReceiveForward
                          : ActionKind::kReceiveBackward);
  }

 private:
  struct Ends {
    std::vector<int> sends;
    std::vector<int> receives;
  };

  int Find(const Action& transfer, ActionKind kind) const {
    const Ends& ends = ends_[ChannelOf(transfer)];
    const auto& list = schedule_.of_rank()[OtherEnd(transfer)];
    for (const int at : IsSend(kind) ? ends.sends : ends.receives) {
      if (list[at].kind == kind && list[at].micro_batch == transfer.micro_batch)
        return at;
    }
    return -1;
  }

  const Schedule& schedule_;
  std::vector<Ends> ends_;
};

class Search {
 public:
  Search(const ExplainInput& input, SchedulesOfJob* schedules)
      : input_(input),
        schedules_(schedules),
        along_pp_(input.mesh.AxesOf({"pp"})),
        pipelines_(input.mesh.GroupsAlong(along_pp_)),
        places_(input.ranks.size()) {}

  Explanation Run() {
    const size_t count = input_.ranks.size();
    result_.waits_for.resize(count);
    result_.in.resize(count);
    if (static_cast<size_t>(input_.mesh.size()) != count ||
        schedules_->ranks() != input_.mesh.extent("pp")) {
      return std::move(result_);
    }
    for (int rank = 0; rank < static_cast<int>(count); ++rank) Place(rank);
    for (const std::vector<int>& ranks : pipelines_) Infer(ranks);
    for (const std::vector<int>& ranks : pipelines_) NameActions(ranks);
    for (const std::vector<int>& ranks : pipelines_) AddTransfers(ranks);
    const MeshAxes exchange = input_.mesh.AxesOf({"dp", "shard"});
    for (const std::vector<int>& ranks : input_.mesh.GroupsAlong(exchange)) {
      AddExchanges(ranks);
    }
    for (const std::vector<int>& ranks : pipelines_) AddEnds(ranks);
    NameHolders();
    return std::move(result_);
  }

 private:
  const RankPlace& Of(int rank) const {
    return input_.ranks[static_cast<size_t>(rank)];
  }
  AtLeast& At(int rank) { return places_[static_cast<size_t>(rank)]; }
  int ListOf(int rank) const {
    return along_pp_.empty()
               ? 0
               : input_.mesh.CoordinatesOf(
                     rank)[static_cast<size_t>(along_pp_.front())];
  }
  const Schedule::Actions& ActionsOf(int rank) {
    return At(rank).schedule->of_rank()[static_cast<size_t>(ListOf(rank))];
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
  const Channels& ChannelsOf(const Schedule* schedule) {
    return channels_.try_emplace(schedule, *schedule).first->second;
  }

  void Place(int rank) {
    const RankPlace& known = Of(rank);
    AtLeast& at = At(rank);
    at.silent = known.silence >= input_.silent_after;
    if (!known.live || !known.place.has_value()) return;
    const Schedule* const schedule = schedules_->Of(known.place->micro_batches);
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
      const Channels& channels = ChannelsOf(at.schedule);
      const Schedule::Actions& list = ActionsOf(rank);
      std::map<int, int> sent;  // by list: the place after the last one
      for (int i = 0; i < at.action; ++i) {
        if (!IsReceive(list[i].kind)) continue;
        int& past = sent[channels.OtherEnd(list[i])];
        past = std::max(past, channels.SendOf(list[i]) + 1);
      }
      for (const auto& [other, past] : sent) {
        const int sender = ranks[static_cast<size_t>(other)];
        if (!Known(sender) || Reached(sender, at.step, past)) continue;
        At(sender) = {at.schedule, at.step, past, /*by_messages=*/true,
                      At(sender).silent};
      }
    }
  }

  // Whether the message of a rank's receive has been sent.
  bool IsSent(const std::vector<int>& ranks, int rank, int action) {
    const Action& receive = ActionsOf(rank)[action];
    const Channels& channels = ChannelsOf(At(rank).schedule);
    const int sender = ranks[static_cast<size_t>(channels.OtherEnd(receive))];
    return Known(sender) &&
           Reached(sender, At(rank).step, channels.SendOf(receive) + 1);
  }

  // Returns the action to name: of a rank whose report is not of now, the
  // first pass that it may be in.
  int ActionOf(const std::vector<int>& ranks, int rank) {
    const AtLeast& at = At(rank);
    const Schedule::Actions& list = ActionsOf(rank);
    if (!at.silent && !at.by_messages) return at.action;
    for (int i = at.action; i < static_cast<int>(list.size()); ++i) {
      if (!IsTransfer(list[i].kind)) return i;
      if (IsReceive(list[i].kind) && !IsSent(ranks, rank, i)) break;
    }
    return at.action;
  }

  void NameActions(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (!Known(rank)) continue;
      const int action = ActionOf(ranks, rank);
      const Schedule::Actions& list = ActionsOf(rank);
      const bool in_step =
          At(rank).step >= 0 && action < static_cast<int>(list.size());
      result_.in[static_cast<size_t>(rank)] =
          in_step ? ToString(list[action]) : kBetweenSteps;
    }
  }

  void Add(int rank, int other) {
    if (rank == other || !Of(other).live) return;
    std::vector<int>& others = result_.waits_for[static_cast<size_t>(rank)];
    if (std::find(others.begin(), others.end(), other) == others.end()) {
      others.push_back(other);
    }
  }

  void AddTransfers(const std::vector<int>& ranks) {
    std::vector<int> stopped;  // that others wait for, though it had sent
    for (const int rank : ranks) {
      if (!Known(rank) || AtEnd(rank)) continue;
      const AtLeast& at = At(rank);
      const Action& action = ActionsOf(rank)[at.action];
      if (!IsTransfer(action.kind)) continue;
      const Channels& channels = ChannelsOf(at.schedule);
      const int other = ranks[static_cast<size_t>(channels.OtherEnd(action))];
      if (IsReceive(action.kind)) {
        const bool sent = IsSent(ranks, rank, at.action);
        const bool held_back = sent && At(other).silent && !at.silent;
        if (!sent || held_back) Add(rank, other);
        if (held_back) stopped.push_back(other);
        continue;
      }
      if (at.silent) continue;
      const int receive =
          IsWaitForSend(action.kind)
              ? channels.ReceiveOf(action)
              : channels.ReceiveBefore(action, at.action, input_.capacity);
      if (receive < 0) continue;
      // Without a buffer, both are at it, and the sender is the one to move.
      const int taken = input_.capacity > 0 ? receive + 1 : receive;
      if (!Known(other) || !Reached(other, at.step, taken)) Add(rank, other);
    }
    for (const int rank : stopped) {
      result_.waits_for[static_cast<size_t>(rank)].clear();
    }
  }

  // `ranks` have the same stages.
  void AddExchanges(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (!Known(rank) || At(rank).step < 0) continue;
      const AtLeast& at = At(rank);
      const Schedule::Actions& list = ActionsOf(rank);
      const bool at_end = AtEnd(rank);
      if (!at_end && list[at.action].kind != ActionKind::kReduceGradient &&
          list[at.action].kind != ActionKind::kWaitReduceGradient) {
        continue;
      }
      for (const int other : ranks) {
        const bool there =
            Known(other) && (at_end ? Ended(other, at.step)
                                    : Reached(other, at.step, at.action));
        if (!there) Add(rank, other);
      }
    }
  }

  bool Ended(int rank, int64_t step) {
    return At(rank).step > step || (At(rank).step == step && AtEnd(rank));
  }

  // Those that have exchanged: the next step begins when all have.
  void AddEnds(const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (!Known(rank) || At(rank).step < 0 || !AtEnd(rank)) continue;
      if (!result_.waits_for[static_cast<size_t>(rank)].empty()) continue;
      for (const int other : ranks) {
        if (Known(other) && !Ended(other, At(rank).step)) Add(rank, other);
      }
    }
  }

  void NameHolders() {
    const size_t count = input_.ranks.size();
    std::vector<std::vector<int>> waited_by(count);
    for (size_t rank = 0; rank < count; ++rank) {
      std::vector<int>& others = result_.waits_for[rank];
      std::sort(others.begin(), others.end());
      for (const int other : others) {
        waited_by[static_cast<size_t>(other)].push_back(static_cast<int>(rank));
      }
    }
    for (size_t rank = 0; rank < count; ++rank) {
      if (waited_by[rank].empty() || !result_.waits_for[rank].empty()) continue;
      result_.holders.push_back(HolderAt(static_cast<int>(rank), waited_by));
    }
    std::stable_sort(
        result_.holders.begin(), result_.holders.end(),
        [](const Holder& a, const Holder& b) { return a.waiters > b.waiters; });
  }

  Holder HolderAt(int rank, const std::vector<std::vector<int>>& waited_by) {
    Holder holder;
    holder.rank = rank;
    std::vector<bool> seen(waited_by.size());
    std::vector<int> reached = {rank};
    seen[static_cast<size_t>(rank)] = true;
    for (size_t i = 0; i < reached.size(); ++i) {
      for (const int waiter : waited_by[static_cast<size_t>(reached[i])]) {
        if (seen[static_cast<size_t>(waiter)]) continue;
        seen[static_cast<size_t>(waiter)] = true;
        reached.push_back(waiter);
      }
    }
    holder.waiters = static_cast<int>(reached.size()) - 1;
    const std::vector<int>& direct = waited_by[static_cast<size_t>(rank)];
    holder.directly = static_cast<int>(direct.size());
    // It holds up the others since they wait for it, whatever it did before.
    absl::Duration waited;
    for (const int waiter : direct) {
      if (Of(waiter).place.has_value()) {
        waited = std::max(waited, Of(waiter).place->in_it);
      }
    }
    holder.since = waited;
    const std::optional<PipelinePlace>& place = Of(rank).place;
    if (Known(rank)) {
      holder.step = At(rank).step;
      const std::vector<int>& ranks = pipelines_[static_cast<size_t>(
          input_.mesh.GroupIndexOf(rank, along_pp_))];
      holder.since = std::min({waited, place->in_it, FreeFor(ranks, rank)});
      const int action = ActionOf(ranks, rank);
      if (At(rank).step >= 0 &&
          action < static_cast<int>(ActionsOf(rank).size())) {
        const Action& in = ActionsOf(rank)[action];
        holder.stage = in.stage;
        holder.action = ToString(in);
        holder.median = MedianOf(*place, in);
      }
    }
    holder.sentence = SentenceOf(holder);
    return holder;
  }

  // Returns no less than for how long a rank that waits for none has had what
  // it waited for before, as far as the ranks that it had it of have not moved
  // since: once nothing moves, that is long.
  absl::Duration FreeFor(const std::vector<int>& ranks, int rank) {
    absl::Duration free = absl::InfiniteDuration();
    const auto note = [&](int other) {
      if (other == rank || !Known(other) || At(other).silent) return;
      free = std::min(free, Of(other).place->in_it);
    };
    if (AtEnd(rank)) {
      for (const int other : ranks) note(other);
      const MeshAxes exchange = input_.mesh.AxesOf({"dp", "shard"});
      for (const int other : input_.mesh.GroupOf(rank, exchange)) note(other);
      return free;
    }
    const Action& action = ActionsOf(rank)[At(rank).action];
    if (IsTransfer(action.kind)) {
      note(ranks[static_cast<size_t>(
          ChannelsOf(At(rank).schedule).OtherEnd(action))]);
    }
    return free;
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
      what = "has reported no place in its pipeline";
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
  const MeshAxes along_pp_;
  const std::vector<std::vector<int>> pipelines_;
  std::vector<AtLeast> places_;
  std::map<const Schedule*, Channels> channels_;
  Explanation result_;
};

}  // namespace

const Schedule* SchedulesOfJob::Of(int micro_batches) {
  if (micro_batches < 1 || micro_batches > most_) return nullptr;
  const auto known = kept_.find(micro_batches);
  if (known != kept_.end()) {
    return known->second.has_value() ? &*known->second : nullptr;
  }
  if (kept_.size() >= kMaxKept) return nullptr;
  std::optional<Schedule>& made = kept_[micro_batches];
  absl::StatusOr<Schedule> schedule =
      MakeSchedule(spec_, ranks_, micro_batches);
  if (schedule.ok()) made = *std::move(schedule);
  return made.has_value() ? &*made : nullptr;
}

void SchedulesOfJob::MakeSpace() {
  if (kept_.size() >= kMaxKept) kept_.clear();
}

const Holder* Explanation::HolderOf(int rank) const {
  for (const Holder& holder : holders) {
    if (holder.rank == rank) return &holder;
  }
  return nullptr;
}

Explanation ExplainPipeline(const ExplainInput& input,
                            SchedulesOfJob* schedules) {
  schedules->MakeSpace();
  return Search(input, schedules).Run();
}

}  // namespace coxswain::pipeline
