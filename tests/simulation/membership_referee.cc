#include "tests/simulation/membership_referee.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "proto/types.pb.h"
#include "server/membership/member_proto.h"

namespace coxswain::simulation {
namespace {

v1::ErrorDetail DetailOf(const absl::Status& status) {
  v1::ErrorDetail detail;
  const auto payload = status.GetPayload(kErrorDetailUrl);
  if (payload.has_value()) detail.ParseFromString(std::string(*payload));
  return detail;
}

}  // namespace

MembershipReferee::Seat* MembershipReferee::Run::Find(Incarnation incarnation) {
  const auto found = by_incarnation.find(incarnation);
  return found == by_incarnation.end() ? nullptr : &seats[found->second];
}

MembershipReferee::Run* MembershipReferee::Find(Generation generation) {
  const auto found = runs_.find(generation);
  return found == runs_.end() ? nullptr : &found->second;
}

MembershipReferee::Seat* MembershipReferee::FindSeat(Generation generation,
                                                     Incarnation incarnation) {
  Run* const run = Find(generation);
  return run == nullptr ? nullptr : run->Find(incarnation);
}

void MembershipReferee::Violate(absl::string_view what) {
  if (!violation_.empty()) return;
  violation_ = absl::StrCat(
      "at ", absl::FormatDuration(now() - absl::UnixEpoch()), ": ", what);
}

void MembershipReferee::OnTerm(Term term,
                               const std::optional<server::LoadedJob>& found) {
  term_ = term;
  stopping_ = false;
  last_change_ = now();
  noticed_last_ = Generation(0);
  for (auto& [generation, run] : runs_) run.noticed = false;
  if (!found.has_value()) {
    if (!runs_.empty()) Violate("the job is forgotten");
    last_ = nullptr;
    committing_.reset();
    return;
  }
  const server::KeptJob& job = found->job;
  if (!found->damage.ok()) return Violate(found->damage.message());
  if (!runs_.empty() && job.generation < runs_.rbegin()->first) {
    return Violate(absl::StrCat(
        "generation ", job.generation.value(), " is found, and generation ",
        runs_.rbegin()->first.value(), " is forgotten"));
  }
  last_ = Find(job.generation);
  // Its commit was under way when the term before ended.
  if (last_ == nullptr && committing_.has_value() &&
      committing_->generation == job.generation) {
    ++generations_;
    last_ = &(runs_[job.generation] = *std::move(committing_));
  }
  committing_.reset();
  if (last_ == nullptr) return Violate("what is found was never written");
  TakeUp(*found);
}

void MembershipReferee::TakeUp(const server::LoadedJob& found) {
  CheckPromises(found);
  const bool finished = found.job.finished;
  finished_ = finished;
  last_->running = found.job.running;
  if (last_->heard_regroup && !found.job.regroups && !finished) {
    Violate("members were sent away, and that is forgotten");
  }
  last_->regroups = found.job.regroups;
  last_->ended_at = now();
  last_->first_left = absl::InfiniteFuture();
  if (last_->running) noticed_ = noticed_last_ = last_->generation;
  for (Seat& seat : last_->seats) {
    Seat fresh;
    fresh.member = seat.member;
    fresh.launcher = seat.launcher;
    fresh.sign = fresh.detached_at = now();
    const auto gone = found.departures.find(seat.member.rank);
    if (gone != found.departures.end()) {
      fresh.left = true;
      fresh.for_good = !gone->second.rejoins;
      fresh.failed = !gone->second.left;
      if (gone->second.rejoins) last_->first_left = now();
      noticed_left_.insert(seat.member.rank);
    }
    if (finished) fresh.left = fresh.for_good = true;
    seat = std::move(fresh);
  }
}

void MembershipReferee::OnResumed(const server::GenerationResumed& resumed) {
  const server::GenerationBegin& begin = resumed.begin;
  if (last_ == nullptr || !last_->running ||
      begin.generation != last_->generation ||
      begin.world_size != static_cast<int>(last_->seats.size())) {
    return Violate("another generation is resumed than was found");
  }
  last_->noticed = true;
  last_->plans.insert(begin.plan.version);
  const std::set<int> left(resumed.left.begin(), resumed.left.end());
  if (left != noticed_left_) Violate("others have left than was found");
}

void MembershipReferee::OnRestored(const server::JobMembership& machine) {
  for (const auto& [incarnation, promise] : left_) {
    if (promise.generation != machine.generation() || promise.rejoins) continue;
    const server::MemberRecord* const record =
        machine.members().Find(incarnation);
    if (record == nullptr) continue;
    if (server::IsLive(record->liveness.state) || record->rejoins) {
      Violate(absl::StrCat(record->member.ToString(),
                           " has left for good, and is expected again"));
    }
  }
}

void MembershipReferee::OnStopped() {
  tickets_.clear();
  streams_.clear();
  aborted_.clear();
  ended_streams_.clear();
  noticed_ = Generation(0);
  noticed_left_.clear();
  abort_asked_ = false;
  if (last_ != nullptr) last_->running = false;
}

void MembershipReferee::OnJoin(uint64_t ticket,
                               const server::JoinRequest& request,
                               bool committing) {
  Ticket& added = tickets_[ticket];
  added.identity = request.identity;
  added.incarnation = request.incarnation;
  added.launcher = request.launcher_id;
  added.at = last_change_ = now();
  dead_.erase(request.incarnation);
  if (request.launcher_id == 0) return;
  for (Run* const run :
       {last_, committing_.has_value() ? &*committing_ : nullptr}) {
    if (run == nullptr) continue;
    for (Seat& seat : run->seats) {
      if (seat.launcher != request.launcher_id ||
          seat.member.incarnation == request.incarnation ||
          !(seat.member.identity == request.identity)) {
        continue;
      }
      if (finished_ && !committing && !stopping_) added.must_finish = true;
      seat.replaced = true;
    }
  }
}

void MembershipReferee::AfterJoin(uint64_t ticket) {
  const auto found = tickets_.find(ticket);
  if (found != tickets_.end() && found->second.must_finish) {
    Violate(absl::StrCat(found->second.identity.ToString(),
                         " waits for a job that is done"));
  }
}

void MembershipReferee::OnWithdraw(uint64_t ticket, bool committing) {
  const auto found = tickets_.find(ticket);
  if (found != tickets_.end()) {
    found->second.withdrawn = true;
    found->second.gone = !committing;
  }
  last_change_ = now();
}

void MembershipReferee::OnLeave(Generation generation, Incarnation incarnation,
                                const server::LeaveNotice& notice) {
  if (!notice.failed) return;
  for (Run* const run :
       {Find(generation), committing_.has_value() ? &*committing_ : nullptr}) {
    if (run == nullptr || run->generation != generation) continue;
    Seat* const seat = run->Find(incarnation);
    if (seat == nullptr) continue;
    seat->failed = true;
    if (!notice.rejoin) seat->for_good = true;
  }
}

void MembershipReferee::OnDeparture(Generation generation,
                                    Incarnation incarnation,
                                    const server::LeaveNotice& notice) {
  Seat* const seat = FindSeat(generation, incarnation);
  if (seat == nullptr) return;
  seat->for_good = !notice.rejoin;
  last_change_ = now();
}

void MembershipReferee::OnExit(Incarnation incarnation) {
  last_change_ = now();
  for (Run* const run :
       {last_, committing_.has_value() ? &*committing_ : nullptr}) {
    Seat* const seat = run == nullptr ? nullptr : run->Find(incarnation);
    if (seat != nullptr) seat->exited = true;
  }
}

void MembershipReferee::OnAttached(Generation generation,
                                   Incarnation incarnation, int stream) {
  Seat* const seat = FindSeat(generation, incarnation);
  if (seat == nullptr || !last_->running || seat->left ||
      last_->generation != generation) {
    return Violate("one that is no member is attached");
  }
  streams_[stream] = incarnation;
  seat->sign = now();
  seat->detached_at = absl::InfiniteFuture();
  seat->broken_at = absl::InfinitePast();
}

void MembershipReferee::OnSign(Incarnation incarnation, absl::Time at) {
  Seat* const seat = last_ == nullptr ? nullptr : last_->Find(incarnation);
  if (seat != nullptr) seat->sign = std::max(seat->sign, at);
}

void MembershipReferee::OnPeerBroken(int rank) {
  last_->seats[static_cast<size_t>(rank)].broken_at = now();
}

void MembershipReferee::OnRegroupTold(bool regroups) {
  last_->regroups = regroups;
}

void MembershipReferee::OnPlan(int64_t version) {
  last_->plans.insert(version);
}

void MembershipReferee::OnPatience() {
  if (last_ == nullptr) return;
  for (Seat& seat : last_->seats) {
    seat.sign = now();
    if (seat.detached_at < absl::InfiniteFuture()) seat.detached_at = now();
  }
  if (last_->first_left < absl::InfiniteFuture()) last_->first_left = now();
}

void MembershipReferee::OnCommit(const server::RunCommit& commit) {
  if (committing_.has_value()) Violate("two generations are being committed");
  Run& next = committing_.emplace();
  next.generation = commit.run.generation;
  for (const server::MemberRecord& record : commit.run.members) {
    Seat& seat = next.seats.emplace_back();
    seat.member = record.member;
    seat.launcher = record.launcher_id;
    next.by_incarnation[record.member.incarnation] = next.seats.size() - 1;
  }
  CheckMembers(commit);
  if (commit.run.previous != Generation(0)) CheckRanks(next);
  CheckSurvivors(next);
}

void MembershipReferee::OnCommitFailed() {
  committing_.reset();
  last_change_ = now();
}

void MembershipReferee::OnBegan(const server::GenerationBegin& begin) {
  if (!committing_.has_value() || committing_->generation != begin.generation ||
      begin.world_size != static_cast<int>(committing_->seats.size())) {
    return Violate("a generation begins that was not committed");
  }
  Run& run = runs_[begin.generation] = *std::move(committing_);
  committing_.reset();
  last_ = &run;
  run.running = true;
  run.plans.insert(begin.plan.version);
  for (Seat& seat : run.seats) seat.sign = now();
  finished_ = false;
  last_change_ = now();
  ++generations_;
  largest_ = std::max<int64_t>(largest_, begin.world_size);
}

void MembershipReferee::OnLeft(Generation generation, int rank) {
  if (stopping_) return;
  if (last_ == nullptr || last_->generation != generation || !last_->running) {
    return Violate("a member leaves a generation that does not run");
  }
  Seat& seat = last_->seats[static_cast<size_t>(rank)];
  if (std::exchange(seat.left, true)) Violate("a member has left twice");
  last_->first_left = std::min(last_->first_left, now());
}

void MembershipReferee::OnEnded(Generation generation,
                                const absl::Status& status) {
  if (stopping_) {
    if (last_ != nullptr) last_->running = false;
    return;
  }
  if (last_ == nullptr || last_->generation != generation || !last_->running) {
    return Violate("a generation ends that does not run");
  }
  if (!streams_.empty()) Violate("a stream outlives its generation");
  last_->running = false;
  const v1::ErrorDetail detail = DetailOf(status);
  std::optional<server::Member> lost;
  if (detail.has_member_lost()) {
    lost = server::FromProto(detail.member_lost().member());
  }
  for (const int stream : ended_streams_) {
    const auto aborted = aborted_.find(stream);
    if (aborted == aborted_.end()) {
      Violate("a member of a generation that has ended was sent no abort");
    } else if (aborted->second.has_value() != lost.has_value() ||
               (lost.has_value() &&
                !(aborted->second->incarnation == lost->incarnation))) {
      Violate("an abort names another member than the end");
    }
  }
  EndRun(lost);
}

void MembershipReferee::EndRun(const std::optional<server::Member>& lost) {
  std::vector<Seat>& seats = last_->seats;
  if (lost.has_value()) {
    CheckLoss(*lost);
  } else if (!abort_asked_ &&
             !std::all_of(seats.begin(), seats.end(),
                          [](const Seat& seat) { return seat.left; })) {
    Violate("a generation ends without a reason");
  }
  abort_asked_ = false;
  last_->ended_at = last_change_ = now();
  const bool gone =
      std::all_of(seats.begin(), seats.end(), [](const Seat& seat) {
        return seat.lost || (seat.left && seat.for_good);
      });
  const bool well =
      std::any_of(seats.begin(), seats.end(), [](const Seat& seat) {
        return seat.left && seat.for_good && !seat.failed && !seat.lost;
      });
  finished_ = gone && well && !last_->regroups;
}

void MembershipReferee::OnAnnounced(Generation generation) {
  Run* const run = Find(generation);
  if (run != nullptr) run->announced = true;
}

void MembershipReferee::OnAnswered(
    uint64_t ticket, const absl::StatusOr<server::JoinResult>& result) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) {
    return Violate("a Join is answered that does not wait");
  }
  const Ticket answered = found->second;
  tickets_.erase(found);
  if (answered.must_finish && !DetailOf(result.status()).has_job_finished()) {
    Violate(absl::StrCat(answered.identity.ToString(),
                         " is started again for a job that is done, and is "
                         "answered ",
                         result.status().ToString()));
  }
  if (result.status().code() == absl::StatusCode::kInvalidArgument) {
    Violate(result.status().ToString());
  }
  if (result.ok()) CheckAnswer(answered, *result);
}

void MembershipReferee::OnSent(int stream, const server::AttachEvent& event) {
  const auto open = streams_.find(stream);
  if (open == streams_.end()) {
    return Violate("a stream is sent something after its end");
  }
  const auto* const sent = std::get_if<server::MembershipEvent>(&event);
  if (sent == nullptr) return;
  if (sent->kind == server::MembershipEvent::Kind::kAbort) {
    aborted_[stream] = sent->member;
  }
  if (sent->kind == server::MembershipEvent::Kind::kStandIn &&
      !sent->address.empty() && sent->address != fallback_) {
    Violate("another fallback coordinator is named than rank 0 has");
  }
}

void MembershipReferee::OnClosed(int stream, const absl::Status& status) {
  const auto open = streams_.find(stream);
  if (open == streams_.end()) return Violate("a stream ends twice");
  if (status.ok() || absl::IsCancelled(status)) return OnDetached(stream);
  ended_streams_.push_back(stream);
  streams_.erase(open);
}

void MembershipReferee::OnDetached(int stream) {
  const auto open = streams_.find(stream);
  if (open == streams_.end()) return Violate("a stream ends twice");
  Seat* const seat = last_->Find(open->second);
  if (seat != nullptr) seat->detached_at = now();
  streams_.erase(open);
}

void MembershipReferee::OnNoticeBegan(Generation generation) {
  if (noticed_ != Generation(0) || !(noticed_last_ < generation)) {
    Violate("observers learn of a begin out of order");
  }
  noticed_ = noticed_last_ = generation;
  noticed_left_.clear();
  Run* const run = Find(generation);
  if (run != nullptr) run->noticed = true;
}

void MembershipReferee::OnNoticeLeft(Generation generation, int rank) {
  if (stopping_) return;
  if (noticed_ != generation || !noticed_left_.insert(rank).second) {
    Violate("observers learn of a departure out of order");
  }
}

void MembershipReferee::OnNoticeEnded(Generation generation) {
  if (stopping_) return;
  if (noticed_ != generation) Violate("observers learn of an end out of order");
  noticed_ = Generation(0);
  const Run* const run = Find(generation);
  if (run == nullptr) return;
  for (const Seat& seat : run->seats) {
    if (seat.left && noticed_left_.count(seat.member.rank) == 0) {
      Violate(absl::StrCat("observers do not learn that ",
                           seat.member.ToString(), " has left"));
    }
  }
}

void MembershipReferee::OnGiven(const server::JoinResult& result) {
  Run* const run = Find(result.generation);
  if (run == nullptr || !run->noticed) {
    Violate("a worker learns of a generation before its observers");
  }
  if (!IsDurable(result.generation)) {
    Violate("a worker learns of a generation that is not durable");
  }
}

void MembershipReferee::OnHeardRegroup(Generation generation) {
  Run* const run = Find(generation);
  if (run != nullptr) run->heard_regroup = true;
}

}  // namespace coxswain::simulation
