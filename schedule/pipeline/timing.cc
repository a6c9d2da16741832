#include "schedule/pipeline/timing.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/pipeline/execution.h"
#include "schedule/pipeline/proof.h"

namespace coxswain::pipeline {
namespace {

absl::Status CheckOptions(const Schedule& schedule,
                          const TimingOptions& options) {
  if (!options.stages.empty() &&
      static_cast<int>(options.stages.size()) != schedule.stages()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are costs of ", options.stages.size(),
                     " stages, and the schedule has ", schedule.stages()));
  }
  bool valid = options.transfer >= 0;
  for (const StageCosts& costs : options.stages) {
    valid = valid && costs.forward >= 0 && costs.backward_input >= 0 &&
            costs.backward_weight >= 0;
  }
  return valid ? absl::OkStatus()
               : absl::InvalidArgumentError("a cost is negative");
}

// Gives each action its time, in an order in which it comes after all that it
// waits for.
class Clockwork {
 public:
  Clockwork(const Schedule& schedule, const TimingOptions& options,
            const Execution& execution)
      : schedule_(schedule), options_(options), execution_(execution) {
    timing_.of_rank.resize(schedule.ranks());
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      timing_.of_rank[rank].resize(schedule.of_rank()[rank].size());
    }
    timing_.busy.resize(schedule.ranks());
    timing_.peak_activations.resize(schedule.ranks());
    held_.resize(schedule.ranks());
    now_.resize(schedule.ranks());
    for (std::vector<double>& arrived : arrived_) {
      arrived.resize(static_cast<size_t>(schedule.stages()) *
                     schedule.micro_batches());
    }
  }

  void Visit(int rank, int at) {
    const Action& action = schedule_.of_rank()[rank][at];
    double& now = now_[rank];
    if (IsTransfer(action.kind)) {
      const double end = std::max(now, EndOfTransfer(rank, action));
      timing_.of_rank[rank][at] = {now, end};
      if (IsReceive(action.kind)) {
        Arrived(action) = end;
      } else {
        now = end;
      }
      return;
    }
    if (NeedsMessage(action.kind)) now = std::max(now, Arrived(action));
    const double cost = CostOf(action);
    timing_.of_rank[rank][at] = {now, now + cost};
    now += cost;
    timing_.busy[rank] += cost;
    if (action.kind == ActionKind::kForward) {
      timing_.peak_activations[rank] =
          std::max(timing_.peak_activations[rank], ++held_[rank]);
    } else if (action.kind == ActionKind::kBackward ||
               action.kind == ActionKind::kBackwardWeight) {
      --held_[rank];
    }
  }

  Timing Result() && {
    timing_.makespan = *std::max_element(now_.begin(), now_.end());
    for (int channel = 0; channel < execution_.channels(); ++channel) {
      timing_.peak_messages =
          std::max(timing_.peak_messages, PeakMessages(channel));
    }
    return std::move(timing_);
  }

 private:
  double CostOf(const Action& action) const {
    static const StageCosts units;
    const StageCosts& costs =
        options_.stages.empty() ? units : options_.stages[action.stage];
    switch (action.kind) {
      case ActionKind::kForward:
        return costs.forward;
      case ActionKind::kBackward:
        return costs.backward_input + costs.backward_weight;
      case ActionKind::kBackwardInput:
        return costs.backward_input;
      case ActionKind::kBackwardWeight:
        return costs.backward_weight;
      default:
        return 0;
    }
  }

  static bool NeedsMessage(ActionKind kind) {
    return IsCompute(kind) && kind != ActionKind::kBackwardWeight;
  }
  // When the message of a receive, or of the pass that needs it, has arrived.
  double& Arrived(const Action& action) {
    const bool forward = action.kind == ActionKind::kForward ||
                         action.kind == ActionKind::kReceiveForward;
    return arrived_[forward ? 0 : 1][static_cast<size_t>(action.stage) *
                                         schedule_.micro_batches() +
                                     action.micro_batch];
  }

  double EndOf(int rank, int at) const { return timing_.of_rank[rank][at].end; }

  // Returns when a transfer can end, as far as the other rank goes.
  double EndOfTransfer(int rank, const Action& action) {
    const int channel = ChannelOf(action);
    const int sender = schedule_.rank_of_stage(channel / 2);
    const int receiver =
        schedule_.rank_of_stage(channel / 2 + (channel % 2 == 0 ? 1 : -1));
    const int message = execution_.OrderOf(action);
    const int capacity = execution_.capacity();
    if (IsWaitForSend(action.kind)) {
      return EndOf(receiver, execution_.receives(channel)[message]);
    }
    if (IsSend(action.kind)) {
      return capacity == 0 || message < capacity
                 ? 0
                 : EndOf(receiver,
                         execution_.receives(channel)[message - capacity]);
    }
    const int send = execution_.sends(channel)[message];
    const double arrives = EndOf(sender, send) + options_.transfer;
    if (capacity == 0) {  // the send, visited last, ends with its receive
      now_[sender] = std::max(arrives, now_[rank]);
      timing_.of_rank[sender][send] = {now_[sender], now_[sender]};
    }
    return arrives;
  }

  int PeakMessages(int channel) const {
    const std::vector<int>& sends = execution_.sends(channel);
    const std::vector<int>& receives = execution_.receives(channel);
    if (sends.empty()) return 0;
    const int sender = schedule_.rank_of_stage(channel / 2);
    const int receiver =
        schedule_.rank_of_stage(channel / 2 + (channel % 2 == 0 ? 1 : -1));
    size_t received = 0;
    size_t peak = 0;
    for (size_t sent = 0; sent < sends.size(); ++sent) {
      const double now = EndOf(sender, sends[sent]);
      while (received < sent && EndOf(receiver, receives[received]) <= now) {
        ++received;
      }
      peak = std::max(peak, sent + 1 - received);
    }
    return static_cast<int>(peak);
  }

  const Schedule& schedule_;
  const TimingOptions& options_;
  const Execution& execution_;
  Timing timing_;
  std::vector<double> now_;  // by rank
  std::vector<int> held_;    // by rank: activations
  // By stage and micro-batch: of activations, and of gradients.
  std::vector<double> arrived_[2];
};

}  // namespace

double Timing::Bubble(int rank) const {
  return makespan > 0 ? 1 - busy[rank] / makespan : 0;
}

double Timing::Bubble() const {
  const double all = std::accumulate(busy.begin(), busy.end(), 0.0);
  return makespan > 0 ? 1 - all / (makespan * static_cast<double>(busy.size()))
                      : 0;
}

absl::StatusOr<Timing> Time(const Schedule& schedule,
                            const TimingOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(CheckOptions(schedule, options));
  COXSWAIN_ASSIGN_OR_RETURN(Execution execution,
                            Execution::Create(schedule, options.capacity));
  Clockwork clockwork(schedule, options, execution);
  execution.Run([&](int rank, int at) { clockwork.Visit(rank, at); });
  if (!execution.AllEnd()) return Prove(schedule, options.capacity);
  return std::move(clockwork).Result();
}

}  // namespace coxswain::pipeline
