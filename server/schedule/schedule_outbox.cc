#include "server/schedule/schedule_outbox.h"

#include <vector>

#include "absl/status/status.h"

namespace coxswain::server {

using schedule::Message;

void ScheduleOutbox::Add(JobSchedule::Effects effects,
                         const schedule::Epoch& epoch) {
  std::vector<Message> to_all;
  for (Message& message : effects.messages) {
    message.epoch = epoch;
    if (message.rank == Message::kAllRanks) {
      to_all.push_back(std::move(message));
    } else {
      Message& answer = answers_[{message.rank, message.stream}];
      answer = std::move(message);
    }
  }
  effects.messages = std::move(to_all);
  if (!effects.empty()) queue_.push_back(std::move(effects));
}

JobSchedule::Effects ScheduleOutbox::Take() {
  JobSchedule::Effects next;
  if (!queue_.empty()) {
    next = std::move(queue_.front());
    queue_.pop_front();
  }
  std::vector<Message> messages;
  messages.reserve(answers_.size() + next.messages.size());
  for (auto& [to, answer] : answers_) messages.push_back(std::move(answer));
  answers_.clear();
  for (Message& message : next.messages) messages.push_back(std::move(message));
  next.messages = std::move(messages);
  return next;
}

void ScheduleOutbox::DropDecisions() {
  answers_.clear();
  for (JobSchedule::Effects& effects : queue_) {
    effects.messages.clear();
    effects.positions.clear();
    effects.failure = absl::OkStatus();
  }
}

}  // namespace coxswain::server
