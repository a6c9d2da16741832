#include "server/group/barrier.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coxswain::server {
namespace {

// A retry comes within seconds of its first try; this covers one barrier of
// the largest world and many of an ordinary one.
constexpr size_t kMaxCompleted = 1 << 14;

// Enough to recognise what is wrong, few enough for a log line.
constexpr size_t kMaxNamedRanks = 16;

void Answer(BarrierDone done, BarrierAnswer answer, BarrierCalls* calls) {
  calls->push_back(
      [done = std::move(done), answer = std::move(answer)] { done(answer); });
}

std::string NameRanks(const std::vector<int>& ranks) {
  if (ranks.size() <= kMaxNamedRanks) return absl::StrJoin(ranks, ", ");
  const std::vector<int> first(ranks.begin(), ranks.begin() + kMaxNamedRanks);
  return absl::StrCat(absl::StrJoin(first, ", "), " and ",
                      ranks.size() - kMaxNamedRanks, " more");
}

std::string Describe(const std::pair<std::string, std::string>& key) {
  return absl::StrCat("barrier \"", key.second, "\" of ",
                      key.first.empty()
                          ? "all ranks"
                          : absl::StrCat("group \"", key.first, "\""));
}

BarrierAnswer CannotComplete(const std::pair<std::string, std::string>& key,
                             int rank) {
  return {absl::FailedPreconditionError(
              absl::StrCat(Describe(key), " cannot complete: rank ", rank,
                           " has left the job in good order")),
          0,
          {}};
}

}  // namespace

void BarrierTable::Remember(const BarrierArrival& arrival) {
  if (arrival.request_id == 0) return;
  const RequestKey request(arrival.incarnation, arrival.request_id);
  if (!completed_.insert(request).second) return;
  completed_order_.push_back(request);
  if (completed_order_.size() <= kMaxCompleted) return;
  completed_.erase(completed_order_.front());
  completed_order_.pop_front();
}

bool BarrierTable::Arrive(const std::string& group, const std::string& tag,
                          const std::vector<int>& ranks, BarrierArrival arrival,
                          BarrierCalls* calls) {
  if (completed_.count({arrival.incarnation, arrival.request_id}) != 0) {
    Answer(std::move(arrival.done), {}, calls);
    return false;
  }
  const Key key(group, tag);
  for (const int rank : ranks) {
    if (left_.count(rank) == 0) continue;
    Answer(std::move(arrival.done), CannotComplete(key, rank), calls);
    return false;
  }
  Waiting& waiting = barriers_[key];
  waiting.ranks = ranks;
  const auto before = waiting.arrived.find(arrival.rank);
  if (before != waiting.arrived.end()) {
    Answer(std::move(before->second.done),
           {absl::AbortedError(absl::StrCat("rank ", arrival.rank,
                                            " came to barrier \"", tag,
                                            "\" again; its later call counts")),
            0,
            {}},
           calls);
    waiting.arrived.erase(before);
  }
  waiting.arrived.emplace(arrival.rank, std::move(arrival));
  if (waiting.arrived.size() < ranks.size()) return true;
  for (auto& [rank, member] : waiting.arrived) {
    Remember(member);
    Answer(std::move(member.done), {}, calls);
  }
  barriers_.erase(key);
  return false;
}

void BarrierTable::Cancel(uint64_t call, BarrierCalls* calls) {
  for (auto it = barriers_.begin(); it != barriers_.end(); ++it) {
    auto& arrived = it->second.arrived;
    for (auto member = arrived.begin(); member != arrived.end(); ++member) {
      if (member->second.call != call) continue;
      Answer(std::move(member->second.done),
             {absl::CancelledError("the call was withdrawn"), 0, {}}, calls);
      arrived.erase(member);
      if (arrived.empty()) barriers_.erase(it);
      return;
    }
  }
}

void BarrierTable::ExpireOne(const Key& key, Waiting* waiting, absl::Time now,
                             BarrierCalls* calls) {
  BarrierAnswer answer;
  answer.expected = static_cast<int>(waiting->ranks.size());
  for (const int rank : waiting->ranks) {
    if (waiting->arrived.count(rank) == 0) answer.missing_ranks.push_back(rank);
  }
  answer.status = absl::DeadlineExceededError(
      absl::StrCat(Describe(key), ": ", answer.missing_ranks.size(), " of ",
                   answer.expected, " ranks did not come before the deadline: ",
                   NameRanks(answer.missing_ranks)));
  auto& arrived = waiting->arrived;
  for (auto it = arrived.begin(); it != arrived.end();) {
    if (it->second.deadline > now) {
      ++it;
      continue;
    }
    Answer(std::move(it->second.done), answer, calls);
    it = arrived.erase(it);
  }
}

void BarrierTable::Expire(absl::Time now, BarrierCalls* calls) {
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    bool due = false;
    for (const auto& [rank, arrival] : it->second.arrived) {
      due = due || arrival.deadline <= now;
    }
    if (due) ExpireOne(it->first, &it->second, now, calls);
    it = it->second.arrived.empty() ? barriers_.erase(it) : std::next(it);
  }
}

void BarrierTable::Leave(int rank, BarrierCalls* calls) {
  left_.insert(rank);
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    const std::vector<int>& ranks = it->second.ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
      ++it;
      continue;
    }
    for (auto& [member, arrival] : it->second.arrived) {
      Answer(std::move(arrival.done), CannotComplete(it->first, rank), calls);
    }
    it = barriers_.erase(it);
  }
}

void BarrierTable::End(const absl::Status& status, BarrierCalls* calls) {
  for (auto& [key, waiting] : barriers_) {
    for (auto& [rank, arrival] : waiting.arrived) {
      Answer(std::move(arrival.done), {status, 0, {}}, calls);
    }
  }
  barriers_.clear();
}

bool BarrierTable::Contains(const std::string& group,
                            const std::string& tag) const {
  return barriers_.count({group, tag}) != 0;
}

}  // namespace coxswain::server
