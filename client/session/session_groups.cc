#include "client/session/session_groups.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/wait_count.h"
#include "client/session/join.h"

namespace coxswain {
namespace {

// How long ranks may still finish connecting with one that has left.
constexpr absl::Duration kFinishGrace = absl::Seconds(2);

std::vector<int> RanksOf(const v1::GroupInfo& info) {
  if (!info.has_range()) return {info.ranks().begin(), info.ranks().end()};
  std::vector<int> ranks;
  for (int i = 0; i < info.range().count(); ++i) {
    ranks.push_back(info.range().first() + i * info.range().stride());
  }
  return ranks;
}

bool IsOfCheckpoints(absl::string_view name) {
  return absl::StartsWith(name, "checkpoint/");
}

// For what goes on beside training, in memory of the CPU. On one GPU it could
// wait for the collectives of training, and they for it on another.
void OnTheSide(ProcessGroup::ConnectOptions* connect) {
  connect->on_peer_lost = nullptr;
  if (connect->device.kind == Device::Kind::kCpu) return;
  connect->device = Device();
  // One of the CPU's stays as it was chosen.
  if (connect->backend == "nccl") connect->backend = "auto";
}

}  // namespace

SessionMembers::SessionMembers(const v1::JoinResponse& joined,
                               std::shared_ptr<MemberContext> member)
    : world_size_(joined.world_size()), member_(std::move(member)) {
  if (joined.members_size() != world_size_) return;
  AppendMembers(joined.members(), &known_);
}

absl::StatusOr<std::vector<JobMember>> SessionMembers::All() {
  {
    MutexLock lock(&mutex_);
    if (!known_.empty()) return known_;
  }
  // Two threads may both ask: they get the same answer.
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<JobMember> members, Ask());
  MutexLock lock(&mutex_);
  known_ = members;
  return members;
}

absl::StatusOr<std::vector<JobMember>> SessionMembers::Ask() const {
  std::vector<JobMember> members;
  while (static_cast<int>(members.size()) < world_size_) {
    const int first = static_cast<int>(members.size());
    v1::MembersRequest request;
    *request.mutable_fence() = member_->fence();
    request.set_first_rank(first);
    request.set_count(world_size_ - first);
    const auto page = member_->stub().Members(request, member_->Call());
    if (!page.ok()) return member_->Outcome(page.status());
    if (page->members().empty() || page->members(0).rank() != first) {
      return absl::InternalError(
          absl::StrCat("the coordinator at ", member_->stub().address(),
                       " was asked for the members from rank ", first, " to ",
                       world_size_ - 1, " and answered with others"));
    }
    AppendMembers(page->members(), &members);
  }
  return members;
}

void SessionGroups::Done::Add(const Communicator& communicator) {
  sequence += communicator.sequence();
  payload_bytes += communicator.payload_bytes();
  wire_bytes += communicator.wire_bytes();
}

SessionGroups::SessionGroups(int rank, ProcessGroup::ConnectOptions connect,
                             std::shared_ptr<MemberContext> member)
    : rank_(rank), connect_(std::move(connect)), member_(std::move(member)) {}

absl::Status SessionGroups::MissingLocked(absl::string_view name,
                                          const std::vector<int>& ranks) const {
  const auto missing = std::find_if(
      ranks.begin(), ranks.end(),
      [this](int rank)
          ABSL_NO_THREAD_SAFETY_ANALYSIS { return left_.count(rank) > 0; });
  if (missing == ranks.end()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the group '", name, "' cannot be connected: ", left_.at(*missing),
      "; let all its ranks connect it"));
}

void SessionGroups::NoteLeft(int rank, std::string words) {
  const absl::Time now = member_->policy().clock->Now();
  MutexLock lock(&mutex_);
  left_.emplace(rank, std::move(words));
  for (auto& [id, attempt] : connecting_) {
    if (!attempt.missing.ok()) continue;
    attempt.missing = MissingLocked(attempt.name, attempt.ranks);
    attempt.missing_since = now;
  }
}

void SessionGroups::EndHopeless() {
  const absl::Time now = member_->policy().clock->Now();
  std::vector<std::pair<std::shared_ptr<CancelSignal>, absl::Status>> hopeless;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, attempt] : connecting_) {
      if (attempt.missing.ok()) continue;
      if (now < attempt.missing_since + kFinishGrace) continue;
      hopeless.emplace_back(attempt.cancel, attempt.missing);
    }
  }
  for (const auto& [cancel, why] : hopeless) cancel->Raise(why);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> SessionGroups::Claim(
    const v1::GroupInfo& info, const std::shared_ptr<CancelSignal>& cancel) {
  const std::string& id = info.communicator_id();
  MutexLock lock(&mutex_);
  // Longer than the other thread's, whose own error is more precise.
  const absl::Duration timeout = connect_.timeout + absl::Seconds(5);
  if (!connected_.WaitFor(&mutex_, timeout,
                          [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                            return connecting_.count(id) == 0;
                          })) {
    return absl::DeadlineExceededError(
        absl::StrCat("another thread has been connecting the group '",
                     info.name(), "' for ", absl::FormatDuration(timeout)));
  }
  const auto existing = groups_.find(id);
  if (existing != groups_.end()) return existing->second;
  const auto failed = failed_.find(id);
  if (failed != failed_.end()) return failed->second;
  std::vector<int> ranks = RanksOf(info);
  COXSWAIN_RETURN_IF_ERROR(MissingLocked(info.name(), ranks));
  connecting_[id] = {info.name(), std::move(ranks), cancel, absl::OkStatus(),
                     absl::InfinitePast()};
  return nullptr;
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> SessionGroups::Obtain(
    const v1::GroupInfo& info) {
  ProcessGroup::ConnectOptions connect = connect_;
  if (IsOfCheckpoints(info.name())) OnTheSide(&connect);
  connect.measures_links = info.name() == kWorldGroup;
  return Obtain(info, connect);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> SessionGroups::ObtainAlone() {
  v1::GroupInfo info;
  info.set_name("alone");
  info.add_ranks(rank_);
  info.set_communicator_id("alone");
  ProcessGroup::ConnectOptions connect = connect_;
  // There is nobody to exchange with by whatever was chosen.
  connect.backend = "auto";
  return Obtain(info, connect);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> SessionGroups::Obtain(
    const v1::GroupInfo& info, ProcessGroup::ConnectOptions connect) {
  const WaitCount::Scope waits(member_->waits().get());
  const auto cancel = std::make_shared<CancelSignal>();
  COXSWAIN_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> known,
                            Claim(info, cancel));
  if (known != nullptr) return known;
  const std::string& id = info.communicator_id();
  connect.cancel = cancel.get();
  CancelSignal& ended = member_->ended();
  const uint64_t link =
      ended.OnRaise([cancel, &ended] { cancel->Raise(ended.status()); });
  auto group = ProcessGroup::Connect({info.name(), RanksOf(info), id}, rank_,
                                     connect, member_);
  ended.Forget(link);
  const absl::Status kept = group.ok() ? Keep(*group) : group.status();
  {
    MutexLock lock(&mutex_);
    if (!group.ok()) failed_.emplace(id, group.status());
    connecting_.erase(id);
    connected_.NotifyAll();
  }
  if (!kept.ok()) return kept;
  return group;
}

absl::Status SessionGroups::Keep(const std::shared_ptr<ProcessGroup>& group) {
  absl::Status ended;
  std::shared_ptr<ProcessGroup> replaced;  // ends without the lock
  {
    MutexLock lock(&mutex_);
    if (IsOfCheckpoints(group->name())) {
      const auto former = groups_.find(checkpoint_);
      if (former != groups_.end()) {
        forgotten_.Add(former->second->communicator());
        replaced = std::move(former->second);
        groups_.erase(former);
      }
      checkpoint_ = group->communicator_id();
    }
    groups_.emplace(group->communicator_id(), group);
    if (!aborted_) return end_;
    ended = end_;
  }
  group->communicator().Abort(ended.message());
  return ended;
}

void SessionGroups::End(const absl::Status& why, bool abort_communicators) {
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  {
    MutexLock lock(&mutex_);
    end_ = why;
    aborted_ = abort_communicators;
    for (const auto& [id, group] : groups_) groups.push_back(group);
  }
  if (!abort_communicators) return;
  for (const auto& group : groups) group->communicator().Abort(why.message());
}

SessionGroups::Done SessionGroups::AllDone() const {
  MutexLock lock(&mutex_);
  Done done = forgotten_;
  for (const auto& [id, group] : groups_) done.Add(group->communicator());
  return done;
}

StepTimings::Traffic SessionGroups::traffic() const {
  const Done done = AllDone();
  return {done.payload_bytes, done.wire_bytes};
}

void SessionGroups::AddProgress(v1::Heartbeat* heartbeat) const {
  const Done done = AllDone();
  heartbeat->set_collective_sequence(done.sequence);
  heartbeat->set_payload_bytes(done.payload_bytes);
  heartbeat->set_wire_bytes(done.wire_bytes);
}

}  // namespace coxswain
