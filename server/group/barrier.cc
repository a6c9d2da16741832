#include "server/group/barrier.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/state/state_writer.h"

namespace coxswain::server {
namespace {

// A retry comes within seconds of its first try; this covers one barrier of
// the largest world and many of an ordinary one.
constexpr size_t kMaxCompleted = 1 << 14;

// Records deleted in one commit.
constexpr size_t kMaxForgotten = 32;

// Enough to recognise what is wrong, few enough for a log line.
constexpr size_t kMaxNamedRanks = 16;

void Answer(BarrierDone done, BarrierAnswer answer, ScopeWork* work) {
  work->calls.push_back(
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
                           " has left the job cleanly")),
          0,
          {}};
}

}  // namespace

absl::Status BarrierTable::Load(const StateStore::Record& record) {
  COXSWAIN_ASSIGN_OR_RETURN(const uint64_t sequence,
                            DecodeBarrierRecord(record.first));
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<BarrierRequest> requests,
                            DecodeRequests(record.second));
  next_sequence_ = std::max(next_sequence_, sequence + 1);
  Remember(sequence, std::move(requests));
  return absl::OkStatus();
}

void BarrierTable::Remember(uint64_t sequence,
                            std::vector<BarrierRequest> requests) {
  for (const BarrierRequest& request : requests) {
    completion_of_[request] = sequence;
  }
  completed_requests_ += requests.size();
  completed_.emplace_back(sequence, std::move(requests));
  while (completed_requests_ > kMaxCompleted && completed_.size() > 1) {
    const auto& [oldest, of_oldest] = completed_.front();
    for (const BarrierRequest& request : of_oldest) {
      completion_of_.erase(request);
    }
    completed_requests_ -= of_oldest.size();
    forgotten_.push_back(oldest);
    completed_.pop_front();
  }
}

bool BarrierTable::AnswerRepeat(BarrierArrival* arrival, ScopeWork* work) {
  const auto it =
      completion_of_.find({arrival->incarnation, arrival->request_id});
  if (it == completion_of_.end()) return false;
  const auto completing = completing_.find(it->second);
  if (completing == completing_.end()) {
    Answer(std::move(arrival->done), {}, work);
  } else {
    completing->second.done.push_back(std::move(arrival->done));
  }
  return true;
}

bool BarrierTable::Arrive(const std::string& group, const std::string& tag,
                          const std::vector<int>& ranks, BarrierArrival arrival,
                          ScopeWork* work) {
  if (AnswerRepeat(&arrival, work)) return false;
  const Key key(group, tag);
  auto it = barriers_.find(key);
  if (it == barriers_.end()) {
    // Once for each barrier rather than for each arrival.
    const auto gone =
        std::find_if(ranks.begin(), ranks.end(),
                     [this](int rank) { return left_.count(rank) != 0; });
    if (gone != ranks.end()) {
      Answer(std::move(arrival.done), CannotComplete(key, *gone), work);
      return false;
    }
    it = barriers_.emplace(key, Waiting()).first;
    it->second.ranks = ranks;
  }
  Waiting& waiting = it->second;
  const auto before = waiting.arrived.find(arrival.rank);
  if (before != waiting.arrived.end()) {
    Answer(std::move(before->second.done),
           {absl::AbortedError(absl::StrCat("rank ", arrival.rank,
                                            " came to barrier \"", tag,
                                            "\" again; its later call counts")),
            0,
            {}},
           work);
    waiting.arrived.erase(before);
  }
  waiting.arrived.emplace(arrival.rank, std::move(arrival));
  if (waiting.arrived.size() < ranks.size()) return true;
  Complete(&waiting, work);
  barriers_.erase(it);
  return false;
}

void BarrierTable::Complete(Waiting* waiting, ScopeWork* work) {
  const uint64_t sequence = next_sequence_++;
  Completion completion;
  completion.sequence = sequence;
  for (auto& [rank, arrival] : waiting->arrived) {
    completion.done.push_back(std::move(arrival.done));
    if (arrival.request_id == 0) continue;
    const BarrierRequest request(arrival.incarnation, arrival.request_id);
    completion.requests.push_back(request);
    completion_of_[request] = sequence;
  }
  ScopeWork::Commit commit;
  commit.batch.Put(table_, BarrierRecord(sequence),
                   EncodeRequests(completion.requests));
  const size_t deleted = std::min(forgotten_.size(), kMaxForgotten);
  completion.forgotten.assign(forgotten_.end() - deleted, forgotten_.end());
  forgotten_.resize(forgotten_.size() - deleted);
  for (const uint64_t forgotten : completion.forgotten) {
    commit.batch.Delete(table_, BarrierRecord(forgotten));
  }
  commit.committed = [this, sequence](const absl::Status& status,
                                      ScopeWork* more) {
    Committed(sequence, status, more);
  };
  completing_.emplace(sequence, std::move(completion));
  work->commits.push_back(std::move(commit));
}

void BarrierTable::Committed(uint64_t sequence, const absl::Status& status,
                             ScopeWork* work) {
  const auto it = completing_.find(sequence);
  if (it == completing_.end()) return;  // The generation has ended.
  Completion completion = std::move(it->second);
  completing_.erase(it);
  BarrierAnswer answer;
  if (status.ok()) {
    Remember(sequence, std::move(completion.requests));
  } else {
    for (const BarrierRequest& request : completion.requests) {
      completion_of_.erase(request);
    }
    forgotten_.insert(forgotten_.end(), completion.forgotten.begin(),
                      completion.forgotten.end());
    answer.status = NotWritten(
        "all ranks came to the barrier, but this could not be recorded",
        status);
  }
  for (BarrierDone& done : completion.done) {
    Answer(std::move(done), answer, work);
  }
}

void BarrierTable::Cancel(uint64_t call, ScopeWork* work) {
  for (auto it = barriers_.begin(); it != barriers_.end(); ++it) {
    auto& arrived = it->second.arrived;
    for (auto member = arrived.begin(); member != arrived.end(); ++member) {
      if (member->second.call != call) continue;
      Answer(std::move(member->second.done),
             {absl::CancelledError("the call was withdrawn"), 0, {}}, work);
      arrived.erase(member);
      if (arrived.empty()) barriers_.erase(it);
      return;
    }
  }
}

void BarrierTable::ExpireOne(const Key& key, Waiting* waiting, absl::Time now,
                             ScopeWork* work) {
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
    Answer(std::move(it->second.done), answer, work);
    it = arrived.erase(it);
  }
}

void BarrierTable::Expire(absl::Time now, ScopeWork* work) {
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    bool due = false;
    for (const auto& [rank, arrival] : it->second.arrived) {
      due = due || arrival.deadline <= now;
    }
    if (due) ExpireOne(it->first, &it->second, now, work);
    it = it->second.arrived.empty() ? barriers_.erase(it) : std::next(it);
  }
}

void BarrierTable::Leave(int rank, ScopeWork* work) {
  left_.insert(rank);
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    const std::vector<int>& ranks = it->second.ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) {
      ++it;
      continue;
    }
    for (auto& [member, arrival] : it->second.arrived) {
      Answer(std::move(arrival.done), CannotComplete(it->first, rank), work);
    }
    it = barriers_.erase(it);
  }
}

void BarrierTable::End(const absl::Status& status, ScopeWork* work) {
  for (auto& [key, waiting] : barriers_) {
    for (auto& [rank, arrival] : waiting.arrived) {
      Answer(std::move(arrival.done), {status, 0, {}}, work);
    }
  }
  for (auto& [sequence, completion] : completing_) {
    for (BarrierDone& done : completion.done) {
      Answer(std::move(done), {status, 0, {}}, work);
    }
  }
  barriers_.clear();
  completing_.clear();
}

bool BarrierTable::Contains(const std::string& group,
                            const std::string& tag) const {
  return barriers_.count({group, tag}) != 0;
}

}  // namespace coxswain::server
