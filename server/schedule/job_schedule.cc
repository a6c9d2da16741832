#include "server/schedule/job_schedule.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedule/bounds.h"

namespace coxswain::server {
namespace {

// How often a stall is looked for: often enough to be found soon after
// progress_timeout, which may be short.
constexpr absl::Duration kMaxLookInterval = absl::Seconds(1);
constexpr int kLooksPerTimeout = 10;

// So long a coordinator may be kept from looking without having stood still.
constexpr absl::Duration kBusy = absl::Seconds(1);

// Changes of the plan that a stream which begins late may still begin with.
constexpr size_t kMaxChanges = 8;

}  // namespace

JobSchedule::JobSchedule(const ScheduleLimits& limits,
                         const GenerationBegin& begin, absl::Time now,
                         Asks asks)
    : limits_(limits),
      begin_(begin),
      asks_(std::move(asks)),
      first_plan_(begin.plan),
      ranks_(static_cast<size_t>(begin.world_size)),
      restarted_(now),
      next_look_(now),
      warned_(absl::InfinitePast()) {
  for (Rank& rank : ranks_) rank.last_contact = rank.progressed = now;
}

void JobSchedule::Resume(const ResumedFrom& from, absl::Time now) {
  resumed_ = from;
  checkpoint_ = from.checkpoint;
  newest_step_ = from.newest_step;
  if (from.plan_before.has_value()) {
    first_plan_ = *from.plan_before;
    changes_.push_back(begin_.plan);
  }
  for (Rank& rank : ranks_) rank.absent = true;
  for (int rank : from.left) {
    ranks_[static_cast<size_t>(rank)].absent = false;
    ranks_[static_cast<size_t>(rank)].left = true;
  }
  for (const Position& position : from.positions) {
    Effects none;  // a stream without tickets has none
    const auto stream = FindOrAddStream(position.stream, now, &none);
    if (!stream.ok()) continue;
    (*stream)->agreement.Restore(position.decision);
    NotePosition(position.decision, *stream, &none);
  }
  resumed_->positions.clear();
}

std::vector<int> JobSchedule::Left() const {
  std::vector<int> left;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].left) left.push_back(static_cast<int>(rank));
  }
  return left;
}

std::vector<int> JobSchedule::Absent() const {
  std::vector<int> absent;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].absent) absent.push_back(static_cast<int>(rank));
  }
  return absent;
}

schedule::StepAgreement::Options JobSchedule::OptionsOf(
    absl::string_view stream) const {
  schedule::StepAgreement::Options options;
  options.stream = std::string(stream);
  options.world_size = begin_.world_size;
  options.plan = first_plan_;
  options.name_of = asks_.name_of;
  options.mesh = begin_.mesh;
  options.resumed = resumed_.has_value();
  options.absent = Absent();
  options.checkpoints = stream == schedule::kTrainStream;
  if (stream != schedule::kTrainStream) return options;
  options.next_plan = asks_.next_plan;
  // What this stream delivers comes to it with no decision of another one.
  if (!changes_.empty()) options.undelivered = changes_.back();
  return options;
}

absl::StatusOr<JobSchedule::Stream*> JobSchedule::FindOrAddStream(
    absl::string_view name, absl::Time now, Effects* effects) {
  const auto found = streams_.find(name);
  if (found != streams_.end()) return &found->second;
  const absl::Status valid =
      schedule::CheckStreamName(name, limits_.max_stream_bytes);
  if (!valid.ok()) return valid;
  const absl::Status fits = CheckStreamCount(streams_.size() + 1);
  if (!fits.ok()) return fits;
  Stream added{std::string(name), schedule::StepAgreement(OptionsOf(name)),
               std::vector<int64_t>(ranks_.size(), -1)};
  Stream& stream = streams_.emplace(name, std::move(added)).first->second;
  if (name == schedule::kTrainStream) {
    if (!regroup_.empty()) stream.agreement.RequestRegroup(regroup_);
    stream.agreement.RequestCheckpoint(checkpoint_);
    RequestCatchUp(&stream);
  } else {
    for (const schedule::Plan& plan : changes_) stream.agreement.NotePlan(plan);
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].left) continue;
    Apply(stream.agreement.OnMemberLeft(static_cast<int>(rank), now), now,
          &stream, effects);
  }
  return &stream;
}

void JobSchedule::NoteSign(int rank, bool is_new, absl::Time now) {
  NoteBack(rank, now);
  Rank& sender = ranks_[static_cast<size_t>(rank)];
  sender.last_contact = now;
  if (is_new) sender.progressed = now;
  received_ = true;
}

absl::Status JobSchedule::OnTicket(int rank, absl::string_view stream,
                                   const schedule::Ticket& ticket,
                                   absl::Time now, Effects* effects) {
  if (over()) return absl::OkStatus();
  const absl::StatusOr<Stream*> found = FindOrAddStream(stream, now, effects);
  if (!found.ok()) return found.status();
  const auto index = static_cast<size_t>(rank);
  schedule::StepAgreement& agreement = (*found)->agreement;
  const auto& last = agreement.last_tickets()[index];
  const bool is_new = !last.has_value() || last->ticket.round < ticket.round;
  NoteSign(rank, is_new, now);
  if (is_new) (*found)->stopped = false;
  ranks_[index].stream = *found;
  Apply(agreement.OnTicket(rank, ticket, now), now, *found, effects);
  return absl::OkStatus();
}

absl::Status JobSchedule::OnVote(int rank, absl::string_view stream,
                                 const schedule::Vote& vote, absl::Time now,
                                 Effects* effects) {
  if (over()) return absl::OkStatus();
  const absl::StatusOr<Stream*> found = FindOrAddStream(stream, now, effects);
  if (!found.ok()) return found.status();
  int64_t& voted = (*found)->voted[static_cast<size_t>(rank)];
  NoteSign(rank, voted < vote.round, now);
  voted = std::max(voted, vote.round);
  Apply((*found)->agreement.OnVote(rank, vote, now), now, *found, effects);
  return absl::OkStatus();
}

absl::Status JobSchedule::CheckStreamCount(size_t count) const {
  if (count <= static_cast<size_t>(limits_.max_streams)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("job '", job(), "' would have ", count,
                   " streams of exchanges; max_streams is ",
                   limits_.max_streams, ": use fewer names"));
}

absl::Status JobSchedule::CheckPositions(
    const std::vector<Position>& positions) const {
  std::set<absl::string_view> named;
  size_t count = streams_.size();
  for (const auto& [stream, decision] : positions) {
    absl::Status valid =
        schedule::CheckStreamName(stream, limits_.max_stream_bytes);
    valid.Update(schedule::CheckPosition(decision));
    if (!valid.ok()) return valid;
    if (!named.insert(stream).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("there are two positions of stream \"", stream,
                       "\"; one decision of each is the last"));
    }
    if (streams_.find(stream) == streams_.end()) ++count;
  }
  return CheckStreamCount(count);
}

absl::Status JobSchedule::OnPosition(int rank, absl::string_view stream,
                                     const schedule::Decision& last,
                                     absl::Time now, Effects* effects) {
  if (over()) return absl::OkStatus();
  const absl::StatusOr<Stream*> found = FindOrAddStream(stream, now, effects);
  if (!found.ok()) return found.status();
  NoteSign(rank, false, now);
  const Stream*& latest = ranks_[static_cast<size_t>(rank)].stream;
  if (latest == nullptr) latest = *found;
  Apply((*found)->agreement.OnPosition(rank, last, now), now, *found, effects);
  return absl::OkStatus();
}

void JobSchedule::OnRegroupWanted(absl::string_view reason) {
  if (over()) return;
  regroup_ = std::string(reason);
  const auto train = streams_.find(schedule::kTrainStream);
  if (train != streams_.end()) train->second.agreement.RequestRegroup(reason);
}

void JobSchedule::OnCatchUpWanted(
    const std::vector<schedule::Newcomer>& newcomers) {
  if (over()) return;
  catch_up_.insert(catch_up_.end(), newcomers.begin(), newcomers.end());
  const auto train = streams_.find(schedule::kTrainStream);
  if (train != streams_.end()) RequestCatchUp(&train->second);
}

void JobSchedule::RequestCatchUp(Stream* train) {
  const size_t count = std::min(catch_up_.size(), schedule::kMaxNewcomers);
  train->agreement.RequestCatchUp(
      {catch_up_.begin(),
       catch_up_.begin() + static_cast<std::ptrdiff_t>(count)});
}

absl::Status JobSchedule::OnCheckpointWanted(absl::string_view reason) {
  if (over()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job '", job(), "' does not run, so no rank has a state to save"));
  }
  if (plan().terms.enforcement == schedule::Enforcement::kOff) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the plan of job '", job(),
        "' has enforcement=off: its ranks have no common step to save after; "
        "set checkpoint_every in the plan"));
  }
  const std::string why =
      schedule::CutReason(reason.empty() ? "it was asked for" : reason);
  const auto train = streams_.find(schedule::kTrainStream);
  checkpoint_ = why;
  if (train != streams_.end()) train->second.agreement.RequestCheckpoint(why);
  return absl::OkStatus();
}

void JobSchedule::NoteBack(int rank, absl::Time now) {
  Rank& returned = ranks_[static_cast<size_t>(rank)];
  if (!std::exchange(returned.absent, false)) return;
  returned.last_contact = returned.progressed = now;
  for (auto& [name, stream] : streams_) stream.agreement.OnBack(rank, now);
}

void JobSchedule::OnMemberLeft(int rank, absl::Time now, Effects* effects) {
  if (over()) return;
  NoteBack(rank, now);
  ranks_[static_cast<size_t>(rank)].left = true;
  for (auto& [name, stream] : streams_) {
    Apply(stream.agreement.OnMemberLeft(rank, now), now, &stream, effects);
  }
}

void JobSchedule::Tick(const std::vector<MemberDescription>& members,
                       absl::Time now, Effects* effects) {
  if (over()) return;
  // Those that lost this coordinator may train on without it.
  if (NoteAttached(members, now)) {
    away_ = true;
    return LookAgainSoon(now);
  }
  if (std::exchange(away_, false)) RestartTimeouts(now);
  // First: it knows more of who is missing than an agreement does.
  LookForStall(members, now, effects);
  for (auto& [name, stream] : streams_) {
    if (now < stream.agreement.deadline()) continue;
    Apply(stream.agreement.Tick(now), now, &stream, effects);
  }
}

bool JobSchedule::NoteAttached(const std::vector<MemberDescription>& members,
                               absl::Time now) {
  bool away = false;
  for (size_t rank = 0; rank < std::min(members.size(), ranks_.size());
       ++rank) {
    const MemberState state = members[rank].state;
    if (state == MemberState::kAttached) NoteBack(static_cast<int>(rank), now);
    away |= state == MemberState::kDetached && !ranks_[rank].left;
  }
  return away;
}

void JobSchedule::RestartTimeouts(absl::Time now) {
  restarted_ = now;
  for (Rank& rank : ranks_) rank.progressed = std::max(rank.progressed, now);
  for (auto& [name, stream] : streams_) stream.agreement.RestartTimeouts(now);
}

void JobSchedule::NotePause(absl::Duration how_long, absl::Time now) {
  const absl::Duration timeout = plan().terms.progress_timeout;
  if (over() || how_long <= std::max(kBusy, timeout / 2)) return;
  RestartTimeouts(now);
}

void JobSchedule::Apply(schedule::StepAgreement::Messages messages,
                        absl::Time now, Stream* stream, Effects* effects) {
  using Kind = schedule::Message::Kind;
  if (over()) return;
  for (size_t i = 0; i < messages.size(); ++i) {
    schedule::Message& message = messages[i];
    const bool to_all = message.rank == schedule::Message::kAllRanks;
    if (message.kind == Kind::kLearned) {
      NotePosition(message.decision, stream, effects);
      continue;
    }
    if (to_all && message.kind == Kind::kDecision) {
      NoteDecision(message.decision, stream, effects);
    }
    if (message.kind == Kind::kWarning) {
      // The same stall, seen with less.
      if (warned_ == now) continue;
      warned_ = now;
    }
    // A decision implies the grant: one message less for each rank.
    if (message.kind == Kind::kGrant && i + 1 < messages.size() &&
        messages[i + 1].kind == Kind::kDecision &&
        messages[i + 1].rank == message.rank &&
        messages[i + 1].round == message.round) {
      continue;
    }
    message.stream = stream->name;
    effects->messages.push_back(std::move(message));
  }
  if (!stream->agreement.failure().ok()) {
    Fail(stream->agreement.failure(), effects);
  }
}

bool JobSchedule::IsLastStep(const Stream& stream,
                             const schedule::Decision& decision) const {
  const int64_t max_steps = plan().terms.max_steps;
  return stream.name == schedule::kTrainStream && max_steps > 0 &&
         !decision.without_data && decision.step + 1 >= max_steps;
}

void JobSchedule::NoteDecision(const schedule::Decision& decision,
                               Stream* stream, Effects* effects) {
  RoundReport report;
  report.stream = stream->name;
  report.round = decision.round;
  report.step = decision.step;
  report.commit = decision.commit;
  report.reason = decision.reason;
  report.decided = decision.decided;
  report.tickets_took = decision.tickets_took;
  report.last_rank = decision.last_rank;
  report.plan_version = decision.plan_version;
  history_.push_front(std::move(report));
  if (history_.size() > static_cast<size_t>(limits_.max_history)) {
    history_.pop_back();
  }
  if (!decision.checkpoint.empty()) checkpoint_.clear();
  if (!decision.newcomers.empty()) {
    // The first of them: see RequestCatchUp.
    const size_t named = std::min(decision.newcomers.size(), catch_up_.size());
    catch_up_.erase(catch_up_.begin(),
                    catch_up_.begin() + static_cast<std::ptrdiff_t>(named));
    RequestCatchUp(stream);
  }
  NotePosition(decision, stream, effects);
  if (decision.plan.has_value()) NotePlan(*decision.plan, *stream, effects);
}

void JobSchedule::NotePosition(const schedule::Decision& decision,
                               Stream* stream, Effects* effects) {
  effects->positions.push_back({stream->name, decision});
  if (stream->name == schedule::kTrainStream) {
    newest_step_ = std::max(newest_step_, decision.next_step.value_or(0));
  }
  stream->stopped = !decision.stop.empty() || !decision.regroup.empty() ||
                    IsLastStep(*stream, decision);
}

void JobSchedule::NotePlan(const schedule::Plan& plan, const Stream& stream,
                           Effects* effects) {
  effects->plan = plan;
  // One that was under way at a restart is known to the others.
  if (!changes_.empty() && changes_.back().version == plan.version) return;
  changes_.push_back(plan);
  if (changes_.size() > kMaxChanges) changes_.pop_front();
  for (auto& [name, other] : streams_) {
    if (&other != &stream) other.agreement.NotePlan(plan);
  }
}

void JobSchedule::Fail(const absl::Status& status, Effects* effects) {
  failure_ = status;
  effects->failure = status;
}

absl::Time JobSchedule::next_look() const {
  // Before the first ticket, and without enforcement, nothing is owed, but for
  // what the ranks of a pipeline owe each other.
  if (over() || plan().terms.enforcement == schedule::Enforcement::kOff ||
      (streams_.empty() && plan().terms.pipeline.empty())) {
    return absl::InfiniteFuture();
  }
  absl::Time next = next_look_;
  for (const auto& [name, stream] : streams_) {
    next = std::min(next, stream.agreement.deadline());
  }
  return next;
}

void JobSchedule::LookAgainSoon(absl::Time now) {
  next_look_ = now + std::min(kMaxLookInterval,
                              plan().terms.progress_timeout / kLooksPerTimeout);
}

void JobSchedule::LookForStall(const std::vector<MemberDescription>& members,
                               absl::Time now, Effects* effects) {
  const absl::Duration timeout = plan().terms.progress_timeout;
  LookAgainSoon(now);
  if (!Absent().empty()) return;
  const schedule::StallInput input = InputOf(members, now);
  const schedule::StallReport report = schedule::FindStall(now, input);
  if (!report.stalled) return;
  if (plan().terms.on_stall == schedule::OnStall::kAbort) {
    Fail(report.error, effects);
    return;
  }
  // Again only if something has moved since, and a while later.
  const bool moved = std::any_of(input.ranks.begin(), input.ranks.end(),
                                 [&](const schedule::RankActivity& rank) {
                                   return rank.progressed > warned_;
                                 });
  if (!moved || now - warned_ < timeout) return;
  warned_ = now;
  schedule::Message warning;
  warning.kind = schedule::Message::Kind::kWarning;
  warning.text = std::string(report.error.message());
  effects->messages.push_back(std::move(warning));
}

std::vector<absl::Time> JobSchedule::TakeSigns() {
  std::vector<absl::Time> signs;
  if (!std::exchange(received_, false)) return signs;
  signs.reserve(ranks_.size());
  for (const Rank& rank : ranks_) signs.push_back(rank.last_contact);
  return signs;
}

}  // namespace coxswain::server
