#include "client/schedule/attached_schedule.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "schedule/bounds.h"
#include "schedule/schedule_wire.h"
#include "schedule/step_agent.h"

namespace coxswain {
namespace {

constexpr size_t kMaxPlans = 8;

v1::AttachRequest RequestOf(const std::string& stream,
                            const schedule::StepAgent::Outgoing& outgoing) {
  v1::AttachRequest request;
  if (std::holds_alternative<schedule::Ticket>(outgoing)) {
    *request.mutable_ticket() =
        schedule::ToWire(stream, std::get<schedule::Ticket>(outgoing));
  } else {
    *request.mutable_vote() =
        schedule::ToWire(stream, std::get<schedule::Vote>(outgoing));
  }
  return request;
}

schedule::StepAgent::Options AgentOptions(absl::string_view stream,
                                          const schedule::Plan& plan,
                                          absl::Duration resend) {
  schedule::StepAgent::Options options;
  options.stream = std::string(stream);
  options.terms = plan.terms;
  options.checkpoints = stream == schedule::kTrainStream;
  options.timeout = schedule::StepTimeoutOf(plan.terms);
  options.resend = resend;
  return options;
}

}  // namespace

// One stream: its gate, and the state machine behind it.
class AttachedSchedule::Stream : public schedule::StepGate {
 public:
  Stream(AttachedSchedule* schedule, schedule::StepAgent::Options options,
         int64_t plan_version_in)
      : agent(std::move(options)),
        plan_version(plan_version_in),
        schedule_(schedule),
        timed_(agent.options().stream == schedule::kTrainStream) {}

  absl::Status Announce(const schedule::Ticket& ticket) override {
    NoteBegun(ticket);
    return schedule_->Announce(*this, ticket);
  }
  absl::Status AwaitGrant() override {
    const absl::Time begun = schedule_->Now();
    absl::Status status = schedule_->AwaitGrant(*this);
    if (timed_) schedule_->timings_.Waited(begun, schedule_->Now());
    return status;
  }
  absl::StatusOr<schedule::Decision> Decide(
      const schedule::Vote& vote) override {
    const absl::Time begun = schedule_->Now();
    absl::StatusOr<schedule::Decision> decision =
        schedule_->Decide(*this, vote);
    if (decision.ok()) NoteDecided(begun, decision->commit);
    return decision;
  }
  void BeginLocal(const schedule::Ticket& ticket) override {
    NoteBegun(ticket);
  }
  void EndLocal() override { NoteDecided(schedule_->Now(), /*commit=*/true); }
  void NoteBucket(int bucket) override { schedule_->bucket_ = bucket; }
  void NoteExchange(int64_t gradient_bytes, absl::Duration waited) override {
    schedule_->gradient_bytes_ += gradient_bytes;
    if (!timed_) return;
    const absl::Time now = schedule_->Now();
    schedule_->timings_.Exchanged(now - waited, now);
    schedule_->EndStep();
  }
  void Abort(const absl::Status& reason) override {
    schedule_->Abort(*this, reason);
  }
  absl::Duration timeout() const override {
    return schedule_->StepTimeout(*this);
  }

  // All of these under the schedule's mutex.
  schedule::StepAgent agent;
  int64_t plan_version;  // whose terms the agent follows
  CondVar answered;
  std::string waits_for;  // what a call waits for; empty: nothing
  // A decision that this library cannot follow, or the reducer's own error.
  absl::Status failure;

 private:
  void NoteBegun(const schedule::Ticket& ticket) {
    const bool last = ticket.micro + ticket.micro_batches >= ticket.window;
    steps_ = ticket.step + (last || ticket.end_of_data ? 1 : 0);
    if (!timed_) return;
    schedule_->timings_.Begun(ticket.step, schedule_->Now(),
                              [this] { return schedule_->TrafficNow(); });
  }
  // Since `begun` the decision was waited for.
  void NoteDecided(absl::Time begun, bool commit) {
    if (!timed_) return;
    if (commit) schedule_->steps_ = steps_;
    schedule_->timings_.Decided(begun, schedule_->Now());
    schedule_->EndStep();
  }

  AttachedSchedule* const schedule_;
  const bool timed_;   // its steps are those of the training
  int64_t steps_ = 0;  // that are done once this one is committed
};

AttachedSchedule::AttachedSchedule(Options options, Sender sender)
    : options_(std::move(options)), sender_(std::move(sender)) {
  {
    MutexLock lock(&mutex_);
    NotePlanLocked(options_.plan);
  }
  thread_ = std::thread([this]() { Run(); });
}

AttachedSchedule::~AttachedSchedule() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  thread_.join();
}

absl::StatusOr<schedule::StepGate*> AttachedSchedule::Gate(
    absl::string_view stream) {
  COXSWAIN_RETURN_IF_ERROR(schedule::CheckStreamName(stream));
  MutexLock lock(&mutex_);
  const auto existing = streams_.find(std::string(stream));
  if (existing != streams_.end()) return existing->second.get();
  if (streams_.size() >= kMaxStreams) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot open the stream '", stream, "': a session has at most ",
        kMaxStreams, " streams (kMaxStreams)"));
  }
  auto added = std::make_unique<Stream>(
      this, AgentOptions(stream, options_.plan, options_.resend),
      options_.plan.version);
  if (!stop_.empty()) added->agent.RequestStop(stop_);
  if (stream == schedule::kTrainStream) {
    added->agent.RequestDrain(drain_);
    added->agent.RequestCheckpoint(std::exchange(checkpoint_, ""));
  }
  schedule::StepGate* gate = added.get();
  streams_.emplace(stream, std::move(added));
  return gate;
}

void AttachedSchedule::RequestStop(absl::string_view reason) {
  MutexLock lock(&mutex_);
  if (!stop_.empty()) return;
  stop_ = reason.empty() ? "no reason given" : std::string(reason);
  for (auto& [name, stream] : streams_) {
    stream->agent.RequestStop(stop_);
    if (stream->agent.options().terms.enforcement ==
        schedule::Enforcement::kOff) {
      LogWarning("stop_not_agreed", {{"job", options_.job},
                                     {"stream", name},
                                     {"reason", stop_},
                                     {"why", "enforcement=off"}});
    }
  }
}

void AttachedSchedule::RequestDrain(absl::string_view reason) {
  MutexLock lock(&mutex_);
  if (!drain_.empty()) return;
  drain_ = reason.empty() ? "no reason given" : std::string(reason);
  const auto train = streams_.find(schedule::kTrainStream);
  if (train != streams_.end()) train->second->agent.RequestDrain(drain_);
  if (plans_.rbegin()->second.terms.enforcement ==
      schedule::Enforcement::kOff) {
    LogWarning("drain_not_agreed", {{"job", options_.job},
                                    {"reason", drain_},
                                    {"why", "enforcement=off"}});
  }
}

void AttachedSchedule::RequestCheckpoint(absl::string_view reason) {
  MutexLock lock(&mutex_);
  std::string why = reason.empty() ? "no reason given" : std::string(reason);
  if (plans_.rbegin()->second.terms.enforcement ==
      schedule::Enforcement::kOff) {
    LogWarning(
        "checkpoint_not_agreed",
        {{"job", options_.job}, {"reason", why}, {"why", "enforcement=off"}});
  }
  const auto train = streams_.find(schedule::kTrainStream);
  if (train != streams_.end()) {
    train->second->agent.RequestCheckpoint(std::move(why));
  } else if (checkpoint_.empty()) {
    checkpoint_ = std::move(why);
  }
}

schedule::Plan AttachedSchedule::plan() const {
  MutexLock lock(&mutex_);
  return plans_.rbegin()->second;
}

void AttachedSchedule::FollowLocked(Leader leader) {
  leader_ = leader;
  fallback_ = nullptr;
  if (leader == Leader::kNone) return;
  for (auto& [name, stream] : streams_) stream->agent.OnConnected();
  ++attached_;
  wake_ = true;
  work_.NotifyAll();
}

void AttachedSchedule::FollowNone() {
  MutexLock send(&send_mutex_);
  MutexLock lock(&mutex_);
  FollowLocked(Leader::kNone);
}

void AttachedSchedule::FollowCoordinator() {
  MutexLock send(&send_mutex_);
  MutexLock lock(&mutex_);
  FollowLocked(Leader::kCoordinator);
}

void AttachedSchedule::FollowFallback(Sender sender,
                                      const schedule::Epoch& epoch) {
  MutexLock send(&send_mutex_);
  MutexLock lock(&mutex_);
  FollowLocked(Leader::kFallback);
  fallback_ = std::move(sender);
  RaiseEpochLocked(epoch);
}

void AttachedSchedule::AwaitPositionsSent() {
  MutexLock lock(&mutex_);
  const int64_t mine = attached_;
  const bool any =
      std::any_of(streams_.begin(), streams_.end(), [](const auto& entry) {
        return entry.second->agent.last_decision().has_value();
      });
  if (!any) return;
  sent_.WaitFor(&mutex_, kPositionWait,
                [this, mine]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                  return positions_sent_ >= mine || stopping_ || !end_.ok();
                });
}

void AttachedSchedule::AddFinalState(v1::LeaveRequest* leave) const {
  MutexLock lock(&mutex_);
  leave->set_fallback_epoch(epoch_.fallback);
  for (const auto& [name, stream] : streams_) {
    const std::optional<schedule::Decision> last =
        stream->agent.last_decision();
    if (!last.has_value()) continue;
    *leave->add_positions()->mutable_last() = schedule::ToWire(name, *last);
  }
}

bool AttachedSchedule::OnEvent(const v1::AttachEvent& event) {
  if (event.has_warning()) {
    LogWarning("coordinator_warns",
               {{"job", options_.job}, {"warning", event.warning().text()}});
  }
  MutexLock lock(&mutex_);
  if (event.has_attached()) OnAttachedLocked(event.attached());
  return HandleLocked(Leader::kCoordinator, coordinator_term_, event);
}

bool AttachedSchedule::OnFallbackEvent(const v1::AttachEvent& event) {
  MutexLock lock(&mutex_);
  return HandleLocked(Leader::kFallback, /*term=*/0, event);
}

bool AttachedSchedule::HandleLocked(Leader from, int64_t term,
                                    const v1::AttachEvent& event) {
  if (!event.has_grant() && !event.has_decision()) return true;
  if (from != leader_) return false;
  // A grant has no epoch: that all tickets of a round agree is so in each.
  if (event.has_decision()) {
    const absl::StatusOr<schedule::Epoch> made =
        schedule::EpochFromWire(event.decision().fallback_epoch(), term);
    if (!made.ok() || *made < epoch_) return false;
    RaiseEpochLocked(*made);
  }
  const auto stream = streams_.find(
      event.has_grant() ? event.grant().stream() : event.decision().stream());
  if (stream == streams_.end()) return true;
  if (event.has_grant()) {
    stream->second->agent.OnGrant(event.grant().round());
  } else {
    OnDecisionLocked(event.decision(), *stream->second);
  }
  stream->second->answered.NotifyAll();
  return true;
}

// What the coordinator decides for this rank it decides knowing of the fallback
// epoch that this rank reports.
void AttachedSchedule::OnAttachedLocked(const v1::Attached& attached) {
  // One that does not send its term is of the one that was known.
  coordinator_term_ = attached.term() == 0 ? epoch_.term : attached.term();
  const absl::StatusOr<schedule::Epoch> known =
      schedule::EpochFromWire(attached.fallback_epoch(), coordinator_term_);
  if (!known.ok()) {
    coordinator_term_ = -1;  // Nor do its decisions count.
    return;
  }
  RaiseEpochLocked({std::max(known->fallback, epoch_.fallback), known->term});
}

void AttachedSchedule::RaiseEpochLocked(const schedule::Epoch& epoch) {
  if (!(epoch_ < epoch)) return;
  epoch_ = epoch;
  for (auto& [name, stream] : streams_) {
    stream->agent.OnOtherCoordinator(options_.clock->Now());
  }
}

void AttachedSchedule::OnDecisionLocked(const v1::Decision& wire,
                                        Stream& stream) {
  if (wire.round() != stream.agent.round()) return;
  v1::Decision sent = wire;
  absl::StatusOr<schedule::Decision> decision = schedule::TakeDecision(&sent);
  if (!decision.ok()) {
    if (stream.failure.ok()) stream.failure = decision.status();
    return;
  }
  if (decision->plan.has_value()) NotePlanLocked(*decision->plan);
  stream.agent.OnDecision(*decision);
}

void AttachedSchedule::NotePlanLocked(const schedule::Plan& plan) {
  plans_[plan.version] = plan;
  if (plans_.size() > kMaxPlans) plans_.erase(plans_.begin());
}

absl::Status AttachedSchedule::StateLocked(const Stream& stream) const {
  return end_.ok() ? stream.failure : end_;
}

void AttachedSchedule::End(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (!end_.ok()) return;
  end_ = why;
  for (auto& [name, stream] : streams_) stream->answered.NotifyAll();
  work_.NotifyAll();
  sent_.NotifyAll();
}

StepTimings::Traffic AttachedSchedule::TrafficNow() const {
  return options_.traffic == nullptr ? StepTimings::Traffic()
                                     : options_.traffic();
}

void AttachedSchedule::EndStep() {
  if (timings_.Over()) timings_.Ended(Now(), TrafficNow());
}

void AttachedSchedule::AddProgress(v1::Heartbeat* heartbeat) const {
  timings_.AddTo(heartbeat);
  heartbeat->set_micro_batches(micro_batches_);
  heartbeat->set_rounds(rounds_);
  heartbeat->set_bucket(bucket_);
  heartbeat->set_gradient_bytes(gradient_bytes_);
  if (heartbeat->step() == 0) heartbeat->set_step(steps_);
  MutexLock lock(&mutex_);
  for (const auto& [name, stream] : streams_) {
    if (!stream->waits_for.empty()) heartbeat->set_activity(stream->waits_for);
  }
}

absl::Status AttachedSchedule::Announce(Stream& stream,
                                        const schedule::Ticket& ticket) {
  bool direct = false;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_ASSIGN_OR_RETURN(const schedule::Enforcement enforcement,
                              BeginRoundLocked(stream, ticket));
    direct = enforcement == schedule::Enforcement::kStrict;
  }
  if (direct) SendDue();
  return absl::OkStatus();
}

absl::StatusOr<schedule::Enforcement> AttachedSchedule::BeginRoundLocked(
    Stream& stream, const schedule::Ticket& ticket) {
  COXSWAIN_RETURN_IF_ERROR(StateLocked(stream));
  schedule::StepAgent& agent = stream.agent;
  // A stream that knows of no plan begins with the one in force, as the
  // coordinator's end of it does.
  const bool unknown = ticket.plan_version == 0 && agent.round() == 0;
  const auto plan =
      unknown ? std::prev(plans_.end()) : plans_.find(ticket.plan_version);
  if (plan != plans_.end() && plan->first > stream.plan_version) {
    COXSWAIN_RETURN_IF_ERROR(agent.Follow(plan->second.terms));
    stream.plan_version = plan->first;
  }
  COXSWAIN_RETURN_IF_ERROR(agent.Announce(ticket, options_.clock->Now()));
  bucket_ = -1;
  if (agent.options().terms.enforcement != schedule::Enforcement::kOff)
    ++rounds_;
  return agent.options().terms.enforcement;
}

absl::Status AttachedSchedule::AwaitGrant(Stream& stream) {
  bool due = false;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(StateLocked(stream));
    if (!stream.agent.announced()) {
      return absl::FailedPreconditionError(
          absl::StrCat("round ", stream.agent.round(), " of the stream '",
                       stream.agent.options().stream,
                       "' waits for a grant before it was announced"));
    }
    due = stream.agent.due() <= options_.clock->Now();
  }
  if (due) SendDue();
  MutexLock lock(&mutex_);
  return WaitLocked(stream, "the grant",
                    [&stream]() { return stream.agent.granted(); });
}

absl::StatusOr<schedule::Decision> AttachedSchedule::Decide(
    Stream& stream, const schedule::Vote& vote) {
  bool direct = false;
  {
    MutexLock lock(&mutex_);
    COXSWAIN_RETURN_IF_ERROR(stream.agent.Vote(vote, options_.clock->Now()));
    direct = stream.agent.due() <= options_.clock->Now();
  }
  if (direct) SendDue();
  MutexLock lock(&mutex_);
  // A decision counts even if the generation has ended since: others may have
  // acted on it.
  COXSWAIN_RETURN_IF_ERROR(WaitLocked(
      stream, "the decision", [&stream]() { return stream.agent.decided(); }));
  return stream.agent.TakeDecision();
}

void AttachedSchedule::Abort(Stream& stream, const absl::Status& reason) {
  MutexLock lock(&mutex_);
  if (stream.failure.ok()) stream.failure = reason;
  stream.answered.NotifyAll();
}

absl::Duration AttachedSchedule::StepTimeout(const Stream& stream) const {
  MutexLock lock(&mutex_);
  return stream.agent.options().terms.enforcement == schedule::Enforcement::kOff
             ? absl::ZeroDuration()
             : stream.agent.options().timeout;
}

absl::Status AttachedSchedule::WaitLocked(
    Stream& stream, absl::string_view what,
    const std::function<bool()>& condition) {
  schedule::StepAgent& agent = stream.agent;
  const int64_t round = agent.round();
  const auto answered = [&]() { return condition() || agent.round() != round; };
  const auto over = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return answered() || !StateLocked(stream).ok();
  };
  if (answered()) return absl::OkStatus();
  const std::string where = absl::StrCat(what, " on round ", round, " of '",
                                         agent.options().stream, "'");
  const WaitCount::Scope waits(options_.waits.get());
  stream.waits_for = absl::StrCat("waiting for ", where);
  while (!over() && !agent.Expired(options_.clock->Now())) {
    stream.answered.WaitFor(&mutex_, options_.look_again, over);
  }
  stream.waits_for.clear();
  if (answered()) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(StateLocked(stream));
  return absl::DeadlineExceededError(absl::StrCat(
      "waited ", absl::FormatDuration(agent.options().timeout), " for ", where,
      ", and the coordinator has not sent the reason. Run ", "`coxswain why ",
      options_.job, "` to see what each rank does"));
}

void AttachedSchedule::SendDue() {
  MutexLock send(&send_mutex_);
  std::vector<v1::AttachRequest> requests;
  Sender sender;
  {
    MutexLock lock(&mutex_);
    if (!end_.ok() || leader_ == Leader::kNone) return;
    sender = leader_ == Leader::kFallback ? fallback_ : sender_;
    requests = TakeDueLocked();
  }
  bool introduced = true;
  for (const v1::AttachRequest& request : requests) {
    // What is not taken is sent again: when the stream is open again, or later.
    // But nothing may be sent before this rank's report.
    const bool taken = sender(request);
    if (taken || !request.has_fallback_report()) continue;
    introduced = false;
    break;
  }
  MutexLock lock(&mutex_);
  if (!introduced) {
    --positions_taken_;
    return;
  }
  // Under send_mutex_: no other thread has taken any since.
  positions_sent_ = positions_taken_;
  sent_.NotifyAll();
}

// Positions first: a coordinator that was restarted knows by them what to make
// of the rest.
std::vector<v1::AttachRequest> AttachedSchedule::TakeDueLocked() {
  std::vector<v1::AttachRequest> requests;
  const absl::Time now = options_.clock->Now();
  const bool positions = positions_taken_ < attached_;
  positions_taken_ = attached_;
  if (positions && leader_ == Leader::kCoordinator && epoch_.fallback > 0) {
    requests.emplace_back().mutable_fallback_report()->set_fallback_epoch(
        epoch_.fallback);
  }
  for (auto& [name, stream] : streams_) {
    const std::optional<schedule::Decision> last =
        stream->agent.last_decision();
    if (positions && last.has_value()) {
      *requests.emplace_back().mutable_position()->mutable_last() =
          schedule::ToWire(name, *last);
    }
  }
  for (auto& [name, stream] : streams_) {
    for (const schedule::StepAgent::Outgoing& outgoing :
         stream->agent.Take(now)) {
      requests.push_back(RequestOf(name, outgoing));
    }
  }
  return requests;
}

absl::Time AttachedSchedule::DueLocked() const {
  absl::Time due = absl::InfiniteFuture();
  if (leader_ == Leader::kNone) return due;
  if (positions_taken_ < attached_) return absl::InfinitePast();
  for (const auto& [name, stream] : streams_) {
    due = std::min(due, stream->agent.due());
  }
  return due;
}

void AttachedSchedule::Run() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      const auto woken = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return wake_ || stopping_ || !end_.ok();
      };
      work_.WaitFor(&mutex_, options_.look_again, woken);
      if (stopping_ || !end_.ok()) return;
      wake_ = false;
      if (DueLocked() > options_.clock->Now()) continue;
    }
    SendDue();
  }
}

}  // namespace coxswain
