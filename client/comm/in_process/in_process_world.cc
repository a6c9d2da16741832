#include "client/comm/in_process/in_process_world.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cancel_signal.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "client/comm/back_end.h"
#include "client/comm/executor.h"

namespace coxswain {
namespace {

// One rank of an InProcessWorld, which makes it. See Communicator.
class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(int rank, int size,
                        std::shared_ptr<InProcessWorld> world);

  absl::string_view backend() const override { return "in_process"; }
  void Abort(absl::string_view reason) override;
  int64_t wire_bytes() const override { return 0; }

 protected:
  absl::Status CheckPlace(const Span& span) const override;
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoAgree(const CollectiveHeader& header) override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllToAll(Span input, Span output) override;
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override;
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override;
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  WorkPtr Start(CollectivePart part);
  WorkPtr Exchange(bool is_send, Span span, int peer, uint32_t tag);

  const std::shared_ptr<InProcessWorld> world_;
  uint64_t next_sequence_ = 0;
  // How often each list has been split off here.
  std::map<std::vector<int>, int64_t> splits_;
  // Raised when the executor stops.
  const std::shared_ptr<CancelSignal> ended_;
  // After all that its threads use.
  Executor executor_;
  std::unique_ptr<SplitLink> link_;  // where this one was split off another
};

InProcessCommunicator::InProcessCommunicator(
    int rank, int size, std::shared_ptr<InProcessWorld> world)
    : Communicator(rank, size),
      world_(std::move(world)),
      ended_(std::make_shared<CancelSignal>()),
      executor_(
          [world = world_, rank, ended = ended_](const absl::Status& why) {
            // In this order: who finds itself gone looks here for the reason.
            ended->Raise(why);
            world->Leave(rank);
          }) {}

void InProcessCommunicator::Abort(absl::string_view reason) {
  executor_.Abort(reason);
}

absl::Status InProcessCommunicator::CheckPlace(const Span& span) const {
  return CheckOnHost(*this, span);
}

WorkPtr InProcessCommunicator::Start(CollectivePart part) {
  part.header.sequence = next_sequence_++;
  return executor_.RunInOrder(
      [this, part] { return world_->Meet(rank(), part); });
}

WorkPtr InProcessCommunicator::Exchange(bool is_send, Span span, int peer,
                                        uint32_t tag) {
  if (span.count == 0) return executor_.Nothing();
  auto message = std::make_shared<std::shared_ptr<InProcessWorld::Message>>();
  return executor_.RunBeside(
      [&] {
        *message = world_->Post(rank(), is_send, span, peer, tag);
        return absl::OkStatus();
      },
      [this, tag, message] { return world_->Await(rank(), tag, *message); });
}

WorkPtr InProcessCommunicator::DoAllReduce(Span span, ReduceOp op) {
  return Start({HeaderOf(CollectiveKind::kAllReduce, span, op), span, {}});
}
WorkPtr InProcessCommunicator::DoBroadcast(Span span, int root) {
  return Start(
      {HeaderOf(CollectiveKind::kBroadcast, span, ReduceOp::kSum, root),
       span,
       {}});
}
WorkPtr InProcessCommunicator::DoAgree(const CollectiveHeader& header) {
  return Start({header, {}, {}});
}
WorkPtr InProcessCommunicator::DoAllGather(Span input, Span output) {
  return Start({HeaderOf(CollectiveKind::kAllGather, input), input, output});
}
WorkPtr InProcessCommunicator::DoReduceScatter(Span input, Span output,
                                               ReduceOp op) {
  return Start(
      {HeaderOf(CollectiveKind::kReduceScatter, input, op), input, output});
}
WorkPtr InProcessCommunicator::DoAllToAll(Span input, Span output) {
  return Start({HeaderOf(CollectiveKind::kAllToAll, input), input, output});
}
WorkPtr InProcessCommunicator::DoSend(Span span, int peer, uint32_t tag) {
  return Exchange(true, span, peer, tag);
}
WorkPtr InProcessCommunicator::DoReceive(Span span, int peer, uint32_t tag) {
  return Exchange(false, span, peer, tag);
}

absl::StatusOr<std::unique_ptr<Communicator>> InProcessCommunicator::DoSplit(
    const std::vector<int>& ranks) {
  auto world = world_->MeetToSplit(rank(), ranks, splits_[ranks]++);
  if (absl::Status why = ended_->status(); !why.ok()) return why;
  COXSWAIN_RETURN_IF_ERROR(world.status());
  const auto self = std::find(ranks.begin(), ranks.end(), rank());
  auto child = std::make_unique<InProcessCommunicator>(
      static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()),
      *std::move(world));
  child->link_ = std::make_unique<SplitLink>(
      ended_, [executor = &child->executor_](absl::string_view why) {
        executor->Abort(why);
      });
  return child;
}

}  // namespace

std::shared_ptr<InProcessWorld> InProcessWorld::Create(int size,
                                                       absl::Duration timeout) {
  COXSWAIN_CHECK(size >= 1);
  return std::shared_ptr<InProcessWorld>(new InProcessWorld(size, timeout));
}

InProcessWorld::InProcessWorld(int size, absl::Duration timeout)
    : size_(size), timeout_(timeout), gone_(static_cast<size_t>(size), false) {}

std::unique_ptr<Communicator> InProcessWorld::MakeRank(int rank) {
  COXSWAIN_CHECK(rank >= 0 && rank < size_);
  return std::make_unique<InProcessCommunicator>(rank, size_,
                                                 shared_from_this());
}

void InProcessWorld::Leave(int rank) {
  MutexLock lock(&mutex_);
  gone_[static_cast<size_t>(rank)] = true;
  changed_.NotifyAll();
}

std::vector<int> InProcessWorld::MissingLocked(const Meeting& meeting) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) {
    if (meeting.parts[static_cast<size_t>(rank)] == nullptr) {
      missing.push_back(rank);
    }
  }
  return missing;
}

template <typename Ranks>
bool InProcessWorld::AnyGoneLocked(const Ranks& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(),
                     [this](int rank) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return gone_[static_cast<size_t>(rank)];
                     });
}

absl::Status InProcessWorld::AwaitMeetingLocked(int rank,
                                                absl::string_view what,
                                                Meeting* meeting) {
  const auto self = static_cast<size_t>(rank);
  changed_.WaitFor(&mutex_, timeout_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return meeting->closed || gone_[self] ||
           AnyGoneLocked(MissingLocked(*meeting));
  });
  // Once closed, the last rank touches this rank's memory: no way out, and no
  // long wait either.
  if (meeting->closed) {
    changed_.WaitForWork(&mutex_, [&] { return meeting->ended; });
    return meeting->result;
  }
  const std::vector<int> missing = MissingLocked(*meeting);
  meeting->parts[self] = nullptr;
  --meeting->arrived;
  if (gone_[self]) return absl::AbortedError("left");
  const std::string ranks = absl::StrJoin(missing, ", ");
  if (AnyGoneLocked(missing)) {
    return absl::UnavailableError(
        absl::StrCat(what, ": of the ranks it waits for (", ranks,
                     ") one has aborted or was destroyed"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": no answer within ", absl::FormatDuration(timeout_),
                   " from ranks ", ranks));
}

absl::Status InProcessWorld::Meet(int rank, const CollectivePart& part) {
  const uint64_t sequence = part.header.sequence;
  std::shared_ptr<Meeting> meeting;
  {
    MutexLock lock(&mutex_);
    auto& slot = meetings_[sequence];
    if (slot == nullptr) {
      slot = std::make_shared<Meeting>();
      slot->parts.resize(static_cast<size_t>(size_));
    }
    meeting = slot;
    meeting->parts[static_cast<size_t>(rank)] = &part;
    if (++meeting->arrived < size_) {
      return AwaitMeetingLocked(rank,
                                absl::StrCat(NameOf(part.header.kind),
                                             " of rank ", rank, " of ", size_),
                                meeting.get());
    }
    meeting->closed = true;
    meetings_.erase(sequence);
    changed_.NotifyAll();
  }
  absl::Status result = ComputeCollective(meeting->parts);
  MutexLock lock(&mutex_);
  meeting->result = result;
  meeting->ended = true;
  changed_.NotifyAll();
  return result;
}

absl::StatusOr<std::shared_ptr<InProcessWorld>> InProcessWorld::MeetToSplit(
    int rank, const std::vector<int>& ranks, int64_t count) {
  const SplitKey key(ranks, count);
  const auto self = static_cast<size_t>(rank);
  MutexLock lock(&mutex_);
  auto& slot = assemblies_[key];
  if (slot == nullptr) {
    slot = std::make_shared<Assembly>();
    slot->missing.insert(ranks.begin(), ranks.end());
    slot->world = Create(static_cast<int>(ranks.size()), timeout_);
  }
  const std::shared_ptr<Assembly> assembly = slot;
  std::set<int>& missing = assembly->missing;
  missing.erase(rank);
  if (missing.empty()) {
    assemblies_.erase(key);
    changed_.NotifyAll();
    return assembly->world;
  }
  changed_.WaitFor(&mutex_, timeout_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return missing.empty() || gone_[self] || AnyGoneLocked(missing);
  });
  if (missing.empty()) return assembly->world;
  const std::string what =
      absl::StrCat("rank ", rank, " of ", size_, " splits off ranks ",
                   absl::StrJoin(ranks, ", "));
  const std::string absent = absl::StrJoin(missing, ", ");
  const bool lost = AnyGoneLocked(missing);
  missing.insert(rank);
  if (gone_[self]) return absl::AbortedError("left");
  if (lost) {
    return absl::UnavailableError(
        absl::StrCat(what, ": of the ranks it waits for (", absent,
                     ") one has aborted or was destroyed"));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(what, ": ranks ", absent, " did not arrive within ",
                   absl::FormatDuration(timeout_)));
}

std::shared_ptr<InProcessWorld::Message> InProcessWorld::Post(
    int rank, bool is_send, Span span, int peer, uint32_t tag) {
  auto message = std::make_shared<Message>();
  message->span = span;
  message->is_send = is_send;
  message->peer = peer;
  const Channel channel =
      is_send ? Channel(rank, peer, tag) : Channel(peer, rank, tag);
  MutexLock lock(&mutex_);
  auto& halves = messages_[channel];
  if (halves.empty() || halves.front()->is_send == is_send) {
    halves.push_back(message);
    return message;
  }
  const auto other = halves.front();
  halves.pop_front();
  if (halves.empty()) messages_.erase(channel);
  if (other->span.count == span.count && other->span.dtype == span.dtype) {
    const Span& from = is_send ? span : other->span;
    const Span& to = is_send ? other->span : span;
    std::memcpy(to.data, from.data, from.bytes());
  } else {
    message->status = other->status = absl::InvalidArgumentError(absl::StrCat(
        "a message between ranks ", rank, " and ", peer, " with tag ", tag,
        " has ", span.count, " x ", NameOf(span.dtype), " at the first and ",
        other->span.count, " x ", NameOf(other->span.dtype), " at the other"));
  }
  message->ended = other->ended = true;
  changed_.NotifyAll();
  return message;
}

absl::Status InProcessWorld::Await(int rank, uint32_t tag,
                                   const std::shared_ptr<Message>& message) {
  const auto self = static_cast<size_t>(rank);
  const auto peer = static_cast<size_t>(message->peer);
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, timeout_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return message->ended || gone_[self] || gone_[peer];
  });
  if (message->ended) return message->status;
  // Its memory must not be used from now on.
  const Channel channel = message->is_send ? Channel(rank, message->peer, tag)
                                           : Channel(message->peer, rank, tag);
  auto& halves = messages_[channel];
  halves.erase(std::remove(halves.begin(), halves.end(), message),
               halves.end());
  if (halves.empty()) messages_.erase(channel);
  if (gone_[self]) return absl::AbortedError("left");
  const std::string what =
      absl::StrCat(message->is_send ? "send to" : "receive from", " rank ",
                   message->peer, " with tag ", tag);
  if (gone_[peer]) {
    return absl::UnavailableError(
        absl::StrCat(what, ": that rank has aborted or was destroyed"));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      what, ": no answer within ", absl::FormatDuration(timeout_)));
}

}  // namespace coxswain
