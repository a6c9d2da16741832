#include "schedule/pipeline/schedule.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::pipeline {
namespace {

using Kind = ActionKind;
using Actions = Schedule::Actions;

// Reads a schedule's lists once, as each rank goes through its own.
class Reading {
 public:
  explicit Reading(const std::vector<Actions>& of_rank) : of_rank_(of_rank) {}

  absl::Status Run() {
    COXSWAIN_RETURN_IF_ERROR(Measure());
    done_.resize(static_cast<size_t>(stages()) * micro_batches_);
    left_.assign(stages(), micro_batches_);
    reduction_.resize(stages());
    for (size_t rank = 0; rank < of_rank_.size(); ++rank) {
      rank_ = static_cast<int>(rank);
      for (const Action& action : of_rank_[rank]) {
        COXSWAIN_RETURN_IF_ERROR(Take(action));
      }
    }
    return CheckEnd();
  }

  std::vector<int> rank_of_stage() && { return std::move(rank_of_stage_); }
  int micro_batches() const { return micro_batches_; }
  bool has_transfers() const { return !crosses_ || transfers_; }

 private:
  // What has been done of a stage and a micro-batch: a bit for each kind.
  using Bits = uint16_t;
  static Bits BitOf(Kind kind) { return Bits{1} << static_cast<int>(kind); }
  static constexpr Bits kBackwards =
      (1 << static_cast<int>(Kind::kBackward)) |
      (1 << static_cast<int>(Kind::kBackwardInput));

  int stages() const { return static_cast<int>(rank_of_stage_.size()); }
  bool Has(int stage, int micro_batch, Bits bits) const {
    return (done_[At(stage, micro_batch)] & bits) != 0;
  }
  size_t At(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * micro_batches_ + micro_batch;
  }

  absl::Status Refuse(const Action& action, absl::string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(action), " of rank ", rank_, " ", why));
  }
  absl::Status Before(const Action& action, const Action& needed) const {
    return Refuse(action, absl::StrCat("does not come after ", ToString(needed),
                                       " on that rank"));
  }

  // Finds how many stages and micro-batches there are, and where stages are.
  absl::Status Measure() {
    if (of_rank_.empty()) return absl::InvalidArgumentError("it has no ranks");
    if (of_rank_.size() > kMaxRanks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "it has ", of_rank_.size(), " ranks; at most ", kMaxRanks, " can"));
    }
    int64_t actions = 0;
    for (size_t rank = 0; rank < of_rank_.size(); ++rank) {
      rank_ = static_cast<int>(rank);
      const Actions& list = of_rank_[rank];
      if (list.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", rank, " has no actions"));
      }
      actions += static_cast<int64_t>(list.size());
      if (actions > kMaxActions) {
        return absl::InvalidArgumentError(
            absl::StrCat("it has more than ", kMaxActions, " actions"));
      }
      for (size_t at = 0; at < list.size(); ++at) {
        COXSWAIN_RETURN_IF_ERROR(Place(list[at]));
        if (list[at].overlap > 0) {
          COXSWAIN_RETURN_IF_ERROR(CheckOverlap(list, at));
        }
      }
    }
    for (int stage = 0; stage < stages(); ++stage) {
      if (rank_of_stage_[stage] < 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "it has a stage ", stages() - 1, " and no stage ", stage));
      }
      if (stage > 0 && rank_of_stage_[stage] != rank_of_stage_[stage - 1]) {
        crosses_ = true;
      }
    }
    if (micro_batches_ == 0) {
      return absl::InvalidArgumentError("it has no micro-batches");
    }
    const int64_t passes = int64_t{stages()} * micro_batches_;
    if (passes > actions) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stages 0 to ", stages() - 1, " and micro-batches 0 to ",
          micro_batches_ - 1, " make ", passes, " forward passes, and there ",
          "are only ", actions, " actions"));
    }
    return absl::OkStatus();
  }

  absl::Status Place(const Action& action) {
    if (action.stage < 0 || action.stage >= kMaxStages ||
        action.micro_batch >= kMaxMicroBatches ||
        IsOfMicroBatch(action.kind) != (action.micro_batch >= 0)) {
      return Refuse(action, "has a stage or a micro-batch that cannot be");
    }
    if (action.stage >= stages()) rank_of_stage_.resize(action.stage + 1, -1);
    int& place = rank_of_stage_[action.stage];
    if (place >= 0 && place != rank_) {
      return Refuse(action, absl::StrCat("is of a stage on rank ", place));
    }
    place = rank_;
    micro_batches_ = std::max(micro_batches_, action.micro_batch + 1);
    transfers_ = transfers_ || IsTransfer(action.kind);
    return absl::OkStatus();
  }

  absl::Status CheckOverlap(const Actions& list, size_t first) const {
    const size_t end = first + list[first].overlap;
    bool ok = list[first].overlap >= 2 && end <= list.size();
    for (size_t at = first; ok && at < end; ++at) {
      ok = IsCompute(list[at].kind) && (at == first || list[at].overlap == 0);
    }
    return ok ? absl::OkStatus()
              : Refuse(list[first], "begins an overlap of what cannot");
  }

  absl::Status Take(const Action& action) {
    if (!IsOfMicroBatch(action.kind)) return TakeOfStage(action);
    Bits& done = done_[At(action.stage, action.micro_batch)];
    if ((done & BitOf(action.kind)) != 0) return Refuse(action, "comes twice");
    COXSWAIN_RETURN_IF_ERROR(IsCompute(action.kind) ? CheckCompute(action)
                                                    : CheckTransfer(action));
    done |= BitOf(action.kind);
    if (action.kind == Kind::kBackward ||
        action.kind == Kind::kBackwardWeight) {
      --left_[action.stage];
    }
    return absl::OkStatus();
  }

  absl::Status TakeOfStage(const Action& action) {
    Bits& done = reduction_[action.stage];
    const Action reduce = {action.stage, -1, Kind::kReduceGradient};
    if (action.kind == Kind::kWaitReduceGradient &&
        (done & BitOf(reduce.kind)) == 0) {
      return Before(action, reduce);
    }
    if (action.kind == Kind::kReduceGradient) {
      if ((done & BitOf(action.kind)) != 0)
        return Refuse(action, "comes twice");
      if (left_[action.stage] > 0) {
        return Refuse(action, absl::StrCat("comes while backward passes of ",
                                           left_[action.stage],
                                           " micro-batches are missing"));
      }
    }
    done |= BitOf(action.kind);
    return absl::OkStatus();
  }

  absl::Status CheckCompute(const Action& action) {
    const int stage = action.stage;
    const int micro_batch = action.micro_batch;
    if (action.kind == Kind::kForward) {
      return CheckInput(action, stage - 1, Kind::kReceiveForward,
                        BitOf(Kind::kForward), Kind::kForward);
    }
    if (!Has(stage, micro_batch, BitOf(Kind::kForward))) {
      return Before(action, {stage, micro_batch, Kind::kForward});
    }
    if (action.kind == Kind::kBackwardWeight) {
      return Has(stage, micro_batch, BitOf(Kind::kBackwardInput))
                 ? absl::OkStatus()
                 : Before(action, {stage, micro_batch, Kind::kBackwardInput});
    }
    if (Has(stage, micro_batch, kBackwards)) {
      return Refuse(action, "follows another backward pass of the same");
    }
    return CheckInput(action, stage + 1, Kind::kReceiveBackward, kBackwards,
                      Kind::kBackward);
  }

  // Checks that what `action` takes from the stage `from` is there: by
  // `receive`, or from `computed` of the same rank.
  absl::Status CheckInput(const Action& action, int from, Kind receive,
                          Bits computed, Kind shown) const {
    if (from < 0 || from >= stages()) return absl::OkStatus();
    if (rank_of_stage_[from] == rank_) {
      return Has(from, action.micro_batch, computed)
                 ? absl::OkStatus()
                 : Before(action, {from, action.micro_batch, shown});
    }
    return !transfers_ || Has(action.stage, action.micro_batch, BitOf(receive))
               ? absl::OkStatus()
               : Before(action, {action.stage, action.micro_batch, receive});
  }

  absl::Status CheckTransfer(const Action& action) const {
    const bool forward = action.kind == Kind::kSendForward ||
                         action.kind == Kind::kReceiveForward ||
                         action.kind == Kind::kWaitSendForward;
    const int peer =
        action.stage + (forward != IsReceive(action.kind) ? 1 : -1);
    if (peer < 0 || peer >= stages()) {
      return Refuse(action, "is with a stage that is not there");
    }
    if (rank_of_stage_[peer] == rank_) {
      return Refuse(action, absl::StrCat("is with stage ", peer,
                                         " of the same rank, where there are "
                                         "no messages"));
    }
    if (IsReceive(action.kind)) return absl::OkStatus();
    if (IsWaitForSend(action.kind)) {
      const Kind send = forward ? Kind::kSendForward : Kind::kSendBackward;
      return Has(action.stage, action.micro_batch, BitOf(send))
                 ? absl::OkStatus()
                 : Before(action, {action.stage, action.micro_batch, send});
    }
    return Has(action.stage, action.micro_batch,
               forward ? BitOf(Kind::kForward) : kBackwards)
               ? absl::OkStatus()
               : Before(action, {action.stage, action.micro_batch,
                                 forward ? Kind::kForward : Kind::kBackward});
  }

  absl::Status CheckEnd() {
    for (int stage = 0; stage < stages(); ++stage) {
      rank_ = rank_of_stage_[stage];
      for (int i = 0; i < micro_batches_; ++i) {
        if (!Has(stage, i, BitOf(Kind::kForward))) {
          return Missing({stage, i, Kind::kForward});
        }
        if (!Has(stage, i, kBackwards)) {
          return Missing({stage, i, Kind::kBackward});
        }
        if (Has(stage, i, BitOf(Kind::kBackwardInput)) &&
            !Has(stage, i, BitOf(Kind::kBackwardWeight))) {
          return Missing({stage, i, Kind::kBackwardWeight});
        }
        if (!transfers_) continue;
        if (Has(stage, i, BitOf(Kind::kReceiveForward)) &&
            !Has(stage - 1, i, BitOf(Kind::kSendForward))) {
          return Unsent({stage, i, Kind::kReceiveForward},
                        {stage - 1, i, Kind::kSendForward});
        }
        if (Has(stage, i, BitOf(Kind::kReceiveBackward)) &&
            !Has(stage + 1, i, BitOf(Kind::kSendBackward))) {
          return Unsent({stage, i, Kind::kReceiveBackward},
                        {stage + 1, i, Kind::kSendBackward});
        }
        // What is sent is received: the pass that needs it has its receive.
      }
    }
    return absl::OkStatus();
  }

  absl::Status Missing(const Action& action) const {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank_, " has no ", ToString(action)));
  }
  absl::Status Unsent(const Action& receive, const Action& send) const {
    return Refuse(receive, absl::StrCat("is of what nobody sends: rank ",
                                        rank_of_stage_[send.stage], " has no ",
                                        ToString(send)));
  }

  const std::vector<Actions>& of_rank_;
  std::vector<int> rank_of_stage_;
  int micro_batches_ = 0;
  bool transfers_ = false;  // there are some
  bool crosses_ = false;    // neighbouring stages are on different ranks
  int rank_ = 0;
  std::vector<Bits> done_;       // by stage and micro-batch
  std::vector<int> left_;        // by stage: micro-batches without gradients
  std::vector<Bits> reduction_;  // by stage
};

}  // namespace

absl::StatusOr<Schedule> Schedule::Create(std::vector<Actions> of_rank) {
  Reading reading(of_rank);
  COXSWAIN_RETURN_IF_ERROR(reading.Run());
  const int micro_batches = reading.micro_batches();
  const bool has_transfers = reading.has_transfers();
  return Schedule(std::move(of_rank), std::move(reading).rank_of_stage(),
                  micro_batches, has_transfers);
}

std::vector<int> Schedule::StagesOf(int rank) const {
  std::vector<int> stages;
  for (int stage = 0; stage < this->stages(); ++stage) {
    if (rank_of_stage_[stage] == rank) stages.push_back(stage);
  }
  return stages;
}

}  // namespace coxswain::pipeline
