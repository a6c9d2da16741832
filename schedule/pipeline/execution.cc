#include "schedule/pipeline/execution.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::pipeline {

absl::StatusOr<Execution> Execution::Create(const Schedule& schedule,
                                            int capacity) {
  if (capacity < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a channel's capacity is 0 or more, not ", capacity));
  }
  if (!schedule.has_transfers()) {
    return absl::InvalidArgumentError(
        "the schedule has no sends and receives: add them first");
  }
  Execution execution(schedule, capacity);
  COXSWAIN_RETURN_IF_ERROR(execution.FindChannels());
  return execution;
}

int Execution::SenderOf(int channel) const {
  return schedule_->rank_of_stage(channel / 2);
}
int Execution::ReceiverOf(int channel) const {
  return schedule_->rank_of_stage(channel / 2 + (channel % 2 == 0 ? 1 : -1));
}

absl::Status Execution::FindChannels() {
  channels_.resize(2 * schedule_->stages() + 2);
  place_.resize(schedule_->ranks());
  for (int rank = 0; rank < schedule_->ranks(); ++rank) {
    const Schedule::Actions& list = schedule_->of_rank()[rank];
    for (size_t at = 0; at < list.size(); ++at) {
      if (!IsTransfer(list[at].kind) || IsWaitForSend(list[at].kind)) continue;
      Channel& channel = channels_[ChannelOf(list[at])];
      (IsSend(list[at].kind) ? channel.sends : channel.receives)
          .push_back(static_cast<int>(at));
    }
  }
  for (int i = 0; i < channels(); ++i) {
    Channel& channel = channels_[i];
    if (channel.sends.empty()) continue;
    channel.order.resize(schedule_->micro_batches());
    for (size_t k = 0; k < channel.sends.size(); ++k) {
      const Action& send = ActionAt(SenderOf(i), channel.sends[k]);
      const Action& receive = ActionAt(ReceiverOf(i), channel.receives[k]);
      if (send.micro_batch != receive.micro_batch) {
        return absl::FailedPreconditionError(absl::StrCat(
            "messages arrive in the order in which they are sent, and rank ",
            SenderOf(i), " sends ", ToString(send), " where rank ",
            ReceiverOf(i), " awaits ", ToString(receive)));
      }
      channel.order[send.micro_batch] = static_cast<int>(k);
    }
  }
  return absl::OkStatus();
}

int Execution::OrderOf(const Action& transfer) const {
  return channels_[ChannelOf(transfer)].order[transfer.micro_batch];
}

void Execution::Run(absl::FunctionRef<void(int rank, int at)> visit) {
  for (int rank = schedule_->ranks() - 1; rank >= 0; --rank) {
    ready_.push_back(rank);
  }
  while (!ready_.empty()) {
    const int rank = ready_.back();
    ready_.pop_back();
    Advance(rank, visit);
  }
}

void Execution::Meet(int channel,
                     absl::FunctionRef<void(int rank, int at)> visit) {
  const int sender = SenderOf(channel);
  const int receiver = ReceiverOf(channel);
  visit(sender, place_[sender]++);
  visit(receiver, place_[receiver]++);
  ++channels_[channel].sent;
  ++channels_[channel].received;
}

void Execution::Advance(int rank,
                        absl::FunctionRef<void(int rank, int at)> visit) {
  const Schedule::Actions& list = schedule_->of_rank()[rank];
  while (place_[rank] < static_cast<int>(list.size())) {
    const Action& action = list[place_[rank]];
    if (!IsTransfer(action.kind)) {
      visit(rank, place_[rank]++);
      continue;
    }
    const int number = ChannelOf(action);
    Channel& channel = channels_[number];
    const bool receives = IsReceive(action.kind);
    if (IsWaitForSend(action.kind)) {
      channel.sender_waits = channel.received <= OrderOf(action);
      if (channel.sender_waits) return;
      visit(rank, place_[rank]++);
      continue;
    }
    bool& peer_waits = receives ? channel.sender_waits : channel.receiver_waits;
    bool& this_waits = receives ? channel.receiver_waits : channel.sender_waits;
    const int in_channel = channel.sent - channel.received;
    if (capacity_ == 0 ? !peer_waits
                       : in_channel == (receives ? 0 : capacity_)) {
      this_waits = true;
      return;
    }
    if (capacity_ == 0) {
      Meet(number, visit);
    } else {
      ++(receives ? channel.received : channel.sent);
      visit(rank, place_[rank]++);
    }
    if (peer_waits) {
      peer_waits = false;
      ready_.push_back(receives ? SenderOf(number) : ReceiverOf(number));
    }
  }
}

bool Execution::AllEnd() const {
  for (int rank = 0; rank < schedule_->ranks(); ++rank) {
    if (place_[rank] < static_cast<int>(schedule_->of_rank()[rank].size())) {
      return false;
    }
  }
  return true;
}

Execution::Need Execution::NeedOf(int rank) const {
  const Action& action = ActionAt(rank, place_[rank]);
  const int number = ChannelOf(action);
  const Channel& channel = channels_[number];
  if (IsReceive(action.kind)) {
    return {SenderOf(number), channel.sends[channel.received]};
  }
  const int message =
      IsWaitForSend(action.kind) ? OrderOf(action) : channel.sent - capacity_;
  return {ReceiverOf(number), channel.receives[message]};
}

}  // namespace coxswain::pipeline
