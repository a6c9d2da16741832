#include "schedule/pipeline/schedules_of_job.h"

#include "absl/status/statusor.h"
#include "schedule/pipeline/generate.h"

namespace coxswain::pipeline {

IndexedSchedule::IndexedSchedule(Schedule schedule)
    : schedule_(std::move(schedule)), hash_(schedule_.Hash()) {
  const size_t channels = 2 * static_cast<size_t>(schedule_.stages()) + 2;
  const auto& lists = schedule_.of_rank();
  const std::vector<int> none(static_cast<size_t>(schedule_.micro_batches()),
                              -1);
  // By channel and micro-batch; channels without messages have none.
  std::vector<std::vector<int>> sends(channels), receives(channels);
  std::vector<int> sent(channels);
  receives_.resize(channels);
  partners_.resize(lists.size());
  for (size_t list = 0; list < lists.size(); ++list) {
    partners_[list].assign(lists[list].size(), -1);
    for (size_t at = 0; at < lists[list].size(); ++at) {
      const Action& action = lists[list][at];
      if (!IsSend(action.kind) && !IsReceive(action.kind)) continue;
      const auto channel = static_cast<size_t>(ChannelOf(action));
      auto& places = (IsSend(action.kind) ? sends : receives)[channel];
      if (places.empty()) places = none;
      places[static_cast<size_t>(action.micro_batch)] = static_cast<int>(at);
      if (IsSend(action.kind)) {
        partners_[list][at] = sent[channel]++;
      } else {
        receives_[channel].push_back(static_cast<int>(at));
      }
    }
  }
  receipts_.resize(lists.size());
  for (size_t list = 0; list < lists.size(); ++list) {
    for (size_t at = 0; at < lists[list].size(); ++at) {
      const Action& action = lists[list][at];
      if (!IsReceive(action.kind) && !IsWaitForSend(action.kind)) continue;
      const auto channel = static_cast<size_t>(ChannelOf(action));
      const auto& places = (IsReceive(action.kind) ? sends : receives)[channel];
      if (places.empty()) continue;
      const int place = places[static_cast<size_t>(action.micro_batch)];
      partners_[list][at] = place;
      if (!IsReceive(action.kind)) continue;
      std::vector<Receipt>& known = receipts_[list][OtherEnd(action)];
      const int before = known.empty() ? 0 : known.back().past;
      known.push_back({static_cast<int>(at), std::max(before, place + 1)});
    }
  }
}

int IndexedSchedule::OtherEnd(const Action& transfer) const {
  const int channel = ChannelOf(transfer);
  const int sender = channel / 2;
  return schedule_.rank_of_stage(
      IsReceive(transfer.kind) ? sender : sender + (channel % 2 == 0 ? 1 : -1));
}

int IndexedSchedule::ReceiveBefore(int list, int at, int messages) const {
  const Action& send = List(list)[static_cast<size_t>(at)];
  const auto& receives = receives_[static_cast<size_t>(ChannelOf(send))];
  const int64_t before = int64_t{PartnerOf(list, at)} - messages;
  return before < 0 || before >= static_cast<int64_t>(receives.size())
             ? -1
             : receives[static_cast<size_t>(before)];
}

std::vector<std::pair<int, int>> IndexedSchedule::SentTo(int list,
                                                         int at) const {
  std::vector<std::pair<int, int>> sent;
  for (const auto& [sender, receipts] : receipts_[static_cast<size_t>(list)]) {
    const auto next = std::partition_point(
        receipts.begin(), receipts.end(),
        [&](const Receipt& receipt) { return receipt.at < at; });
    if (next != receipts.begin()) {
      sent.emplace_back(sender, std::prev(next)->past);
    }
  }
  return sent;
}

void SchedulesOfJob::Use(absl::string_view spec, int window) {
  spec_ = std::string(spec);
  window_ = window;
  most_ = std::max(most_, window);
}

void SchedulesOfJob::Begin() {
  ++explanation_;
  made_ = 0;
  const Key own = {spec_, window_};
  const bool made = kept_.count(own) > 0;
  // Those that no rank runs any more; one has to go for the plan's own.
  for (auto it = kept_.begin(); it != kept_.end();) {
    const bool unused = it->second.used + 1 < explanation_;
    const bool full = kept_.size() >= kMaxKept && (unused || !made);
    it = full && it->first != own ? kept_.erase(it) : std::next(it);
  }
  if (!made) Make(window_);
  made_ = 0;
}

const IndexedSchedule* SchedulesOfJob::Of(int micro_batches, uint64_t hash) {
  for (auto& [key, kept] : kept_) {
    if (key.second != micro_batches || !kept.schedule.has_value()) continue;
    if (hash == 0 ? key.first != spec_ : kept.schedule->hash() != hash) {
      continue;
    }
    kept.used = explanation_;
    return &*kept.schedule;
  }
  const auto known = kept_.find({spec_, micro_batches});
  if (known != kept_.end()) return nullptr;
  const IndexedSchedule* const made = Make(micro_batches);
  return made == nullptr || hash == 0 || made->hash() == hash ? made : nullptr;
}

const IndexedSchedule* SchedulesOfJob::Make(int micro_batches) {
  if (micro_batches < 1 || micro_batches > most_ || made_ >= kMaxMade ||
      kept_.size() >= kMaxKept) {
    return nullptr;
  }
  const int64_t actions = CountActions(spec_, ranks_, micro_batches);
  if (actions == 0 || actions > most_actions_) return nullptr;
  ++made_;
  Kept& kept = kept_[{spec_, micro_batches}];
  kept.used = explanation_;
  absl::StatusOr<Schedule> schedule =
      MakeSchedule(spec_, ranks_, micro_batches);
  if (!schedule.ok()) return nullptr;
  return &kept.schedule.emplace(*std::move(schedule));
}

int64_t CountActions(absl::string_view spec, int ranks, int micro_batches) {
  const absl::StatusOr<ScheduleSpec> parsed = ScheduleSpec::Parse(spec);
  if (!parsed.ok() || ranks < 1 || micro_batches < 1) return 0;
  const int64_t stages = int64_t{ranks} * parsed->chunks;
  const int passes = parsed->kind == ScheduleSpec::Kind::kZbH1 ? 3 : 2;
  // A message each way over each boundary between ranks, sent and received.
  const int64_t transfers = ranks > 1 ? 4 * (stages - 1) : 0;
  return (passes * stages + transfers) * micro_batches;
}

}  // namespace coxswain::pipeline
