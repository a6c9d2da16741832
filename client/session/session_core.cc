#include "client/session/session_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/logging.h"
#include "base/mesh.h"
#include "client/rpc/grpc_coordinator_stub.h"
#include "client/session/join.h"
#include "client/session/nccl_ras.h"
#include "schedule/plan.h"
#include "schedule/sign_interval.h"
#include "transport/error_detail.h"

namespace coxswain {
namespace {

constexpr absl::Duration kAttachTimeout = absl::Seconds(30);
// For telling that a member of an ended generation does not come back.
constexpr absl::Duration kLeaveEndedTimeout = absl::Seconds(2);

void Fill(const PipelinePlace& place, v1::PipelinePlace* proto) {
  proto->set_step(place.step);
  proto->set_action(place.action);
  proto->set_micro_batches(place.micro_batches);
  proto->set_seconds(absl::ToDoubleSeconds(place.in_it));
  proto->set_schedule(place.schedule);
  for (const StagePasses& one : place.passes) {
    if (proto->passes_size() >= static_cast<int>(PipelinePlace::kMaxStages)) {
      break;
    }
    v1::StagePasses* const passes = proto->add_passes();
    passes->set_stage(one.stage);
    passes->set_forward(one.forward);
    passes->set_backward(one.backward);
    passes->set_backward_input(one.backward_input);
    passes->set_backward_weight(one.backward_weight);
  }
}

std::string InWords(const v1::MemberLeft& left) {
  return absl::StrCat("rank ", left.member().rank(),
                      InParentheses(left.member().coordinates()), " on ",
                      left.member().host(), " has left: ", left.reason());
}

// Who was lost, if that is why.
int LostRank(const absl::Status& why) {
  const v1::ErrorDetail detail = DetailOf(why);
  return detail.has_member_lost() ? detail.member_lost().member().rank() : -1;
}

}  // namespace

Session::Core::Core(Request request_in, const v1::JoinResponse& joined,
                    const schedule::Plan& plan_in, Mesh mesh_in,
                    std::shared_ptr<const DataKey> key)
    : request(std::move(request_in)),
      rank(joined.rank()),
      generation(joined.generation()),
      plan(plan_in),
      previous(PreviousOf(joined)),
      mesh(std::move(mesh_in)),
      member(std::make_shared<MemberContext>(
          request.stub, MakeFence(request.options, joined),
          RetriesOf(request.options), request.options.security)),
      members(joined, member),
      store(member),
      checkpoints(member),
      events_(generation, request.options.clock),
      peer_reports_(std::make_shared<PeerReports>(
          rank, members.world_size(),
          [this](const v1::AttachRequest& report) {
            return attachment_ != nullptr && attachment_->Send(report);
          })),
      groups_(rank,
              {request.options.backend, request.options.address,
               request.options.collective_timeout,
               [reports = std::weak_ptr<PeerReports>(peer_reports_)](int peer) {
                 const auto living = reports.lock();
                 if (living != nullptr) living->Report({peer});
               },
               request.options.device, request.links,
               /*measures_links=*/false, EncryptsData(request.options),
               std::move(key), request.options.connect},
              member),
      noted_plan_(plan.version) {
  AttachedSchedule::Options schedule_options;
  schedule_options.job = request.options.job;
  schedule_options.plan = plan;
  schedule_options.clock = request.options.clock;
  schedule_options.waits = member->waits();
  schedule_options.traffic = [this]() { return groups_.traffic(); };
  schedule_ = std::make_unique<AttachedSchedule>(
      schedule_options, [this](const v1::AttachRequest& request) {
        return attachment_ != nullptr && attachment_->Send(request);
      });
  // Of the generation before.
  request.links->NoteRing("");
  Note(SessionEvent::Kind::kJoined, previous.reason, rank, joined.term());
}

Session::Core::~Core() {
  peer_reports_->Stop();
  if (attachment_ != nullptr) attachment_->Stop();
  fallback_.reset();
}

void Session::Core::MakeFallbackClient() {
  FallbackClient::Options options;
  // A token proves who a worker is to the coordinator alone: to its peers there
  // would be no proof. Steps wait for the coordinator then.
  const ClientSecurity& security = request.options.security;
  const bool peers_know =
      security.token_file.empty() || !security.tls.ca.empty();
  options.on = request.options.fallback && peers_know;
  options.rank = rank;
  options.world_size = members.world_size();
  options.mesh = mesh;
  options.fence = member->fence();
  options.host = request.options.address;
  options.after = FallbackAfter(request.options, members.world_size());
  options.retry = member->policy();
  options.security = request.options.security;
  options.connect = [security = request.options.security,
                     job = request.options.job](const std::string& address) {
    return MakeFallbackStub(address, security, job);
  };
  FallbackClient::Callbacks callbacks;
  AttachedSchedule* const schedule = schedule_.get();
  callbacks.needed = [schedule]() {
    return schedule->plan().terms.enforcement != schedule::Enforcement::kOff;
  };
  callbacks.follow_none = [schedule]() { schedule->FollowNone(); };
  callbacks.follow_coordinator = [schedule]() {
    schedule->FollowCoordinator();
  };
  callbacks.follow_fallback = [schedule](
                                  FallbackClient::Callbacks::Sender sender,
                                  const schedule::Epoch& epoch) {
    schedule->FollowFallback(std::move(sender), epoch);
  };
  callbacks.on_event = [this](const v1::AttachEvent& event) {
    if (schedule_->OnFallbackEvent(event)) NoteEvent(event);
  };
  callbacks.plan = [schedule]() { return schedule->plan(); };
  fallback_ = std::make_unique<FallbackClient>(std::move(options),
                                               std::move(callbacks));
}

absl::Status Session::Core::Attach(const v1::JoinResponse& joined) {
  Attachment::Options options;
  options.grace = request.options.reattach_grace;
  options.spread = ReattachSpread(members.world_size());
  options.max_pause =
      RetriesOfMember(request.options, members.world_size()).cap;
  if (joined.heartbeat_interval_ms() > 0) {
    options.heartbeat_interval =
        absl::Milliseconds(joined.heartbeat_interval_ms());
  }
  heartbeat_interval_ = options.heartbeat_interval;
  options.sign_interval =
      schedule::SignInterval(options.heartbeat_interval, members.world_size());
  MakeFallbackClient();
  options.fallback_address = fallback_->address();
  attachment_ =
      std::make_shared<Attachment>(member, options, AttachmentCallbacks());
  // The membership lives on in watches that outlive the session.
  member->stale().OnRaise(
      [attachment = std::weak_ptr(attachment_), member = member.get()]() {
        if (const auto living = attachment.lock()) {
          living->NoteStale(member->stale().status());
        }
      });
  return attachment_->WaitUntilAttached(
      std::max(kAttachTimeout, request.options.reattach_grace));
}

Attachment::Callbacks Session::Core::AttachmentCallbacks() {
  Attachment::Callbacks callbacks;
  callbacks.progress = [this]() { return NextHeartbeat(); };
  callbacks.silence_counts = [this]() {
    return schedule_->plan().terms.stall_timeout < absl::InfiniteDuration();
  };
  callbacks.on_reattached = [this]() { peer_reports_->SendPending(); };
  callbacks.on_attached = [this](int64_t term, bool again) {
    fallback_->OnAttached();
    schedule_->AwaitPositionsSent();
    if (!again) return;
    Note(SessionEvent::Kind::kReattached,
         absl::StrCat("the coordinator at ", member->stub().address(),
                      " has accepted this worker again, in term ", term),
         rank, term);
  };
  callbacks.on_lost = [this](const absl::Status& why) {
    fallback_->OnLost();
    Note(SessionEvent::Kind::kCoordinatorLost,
         absl::StrCat("the connection to the coordinator at ",
                      member->stub().address(), " was lost: ", why.message()),
         rank, member->term().Get());
  };
  callbacks.on_event = [this](const v1::AttachEvent& event) {
    OnCoordinatorEvent(event);
  };
  callbacks.on_end = [this](const absl::Status& why) { OnEnd(why); };
  return callbacks;
}

void Session::Core::OnCoordinatorEvent(const v1::AttachEvent& event) {
  if (event.has_fallback_address())
    fallback_->NoteAddress(event.fallback_address().address());
  if (event.has_member_left()) {
    fallback_->NoteRankLeft(event.member_left().member().rank());
    groups_.NoteLeft(event.member_left().member().rank(),
                     InWords(event.member_left()));
  }
  if (schedule_->OnEvent(event)) NoteEvent(event);
}

v1::Heartbeat Session::Core::Progress() const {
  v1::Heartbeat heartbeat;
  heartbeat.set_step(step.load());
  schedule_->AddProgress(&heartbeat);
  groups_.AddProgress(&heartbeat);
  heartbeat.set_ring(request.links->ring());
  PlaceSource place_source;
  {
    MutexLock lock(&mutex_);
    heartbeat.set_error_norm(error_norm_);
    heartbeat.set_error_step(error_step_);
    for (const NewcomerReport& report : newcomers_) {
      v1::NewcomerReport* const wire = heartbeat.add_newcomers();
      wire->set_incarnation(report.incarnation);
      wire->set_settled(report.settled);
      wire->set_damage(report.damage);
    }
    place_source = pipeline_place_;
  }
  if (place_source == nullptr) return heartbeat;
  const std::optional<PipelinePlace> place = place_source();
  if (place.has_value()) Fill(*place, heartbeat.mutable_pipeline());
  return heartbeat;
}

v1::Heartbeat Session::Core::NextHeartbeat() {
  groups_.EndHopeless();
  v1::Heartbeat heartbeat = Progress();
  heartbeat.set_interval_ms(absl::ToInt64Milliseconds(heartbeat_interval_));
  // Else it is not asked for.
  if (schedule_->plan().terms.stall_timeout == absl::InfiniteDuration()) {
    return heartbeat;
  }
  WorkDone done;
  done.collectives = heartbeat.collective_sequence();
  done.wire_bytes = heartbeat.wire_bytes();
  done.rounds = heartbeat.rounds();
  done.micro_batches = heartbeat.micro_batches();
  done.step = heartbeat.step();
  done.waits = member->waits()->ended();
  const absl::Duration waited =
      waits_.Look(request.options.clock->Now(),
                  waits_elsewhere.load() || member->waits()->any(), done);
  heartbeat.set_waiting_ms(absl::ToInt64Milliseconds(waited));
  return heartbeat;
}

void Session::Core::SetPipelinePlace(PlaceSource source) {
  MutexLock lock(&mutex_);
  pipeline_place_ = std::move(source);
}

void Session::Core::ReportNewcomers(std::vector<NewcomerReport> reports) {
  {
    MutexLock lock(&mutex_);
    newcomers_ = std::move(reports);
  }
  v1::AttachRequest request;
  *request.mutable_heartbeat() = Progress();
  request.mutable_heartbeat()->set_interval_ms(
      absl::ToInt64Milliseconds(heartbeat_interval_));
  // If it is not taken, the next one has it.
  if (attachment_ != nullptr) attachment_->Send(request);
}

void Session::Core::ReportErrorNorm(double norm, int64_t at_step) {
  MutexLock lock(&mutex_);
  error_norm_ = norm;
  error_step_ = at_step;
}

void Session::Core::Note(SessionEvent::Kind kind, std::string text,
                         int about_rank, int64_t term) {
  SessionEvent event;
  event.kind = kind;
  event.text = std::move(text);
  event.rank = about_rank;
  event.term = term;
  events_.Put(std::move(event));
}

void Session::Core::NoteEvent(const v1::AttachEvent& event) {
  if (event.has_warning()) {
    Note(SessionEvent::Kind::kWarning, event.warning().text());
    NoteNcclState();
  } else if (event.has_member_left()) {
    Note(SessionEvent::Kind::kMemberLeft, InWords(event.member_left()),
         event.member_left().member().rank());
  } else if (event.has_decision()) {
    NoteDecision(event.decision());
  }
}

void Session::Core::NoteDecision(const v1::Decision& decision) {
  bool new_plan = false, regroup = false;
  {
    MutexLock lock(&mutex_);
    new_plan = decision.has_plan() && decision.plan().version() > noted_plan_;
    if (new_plan) noted_plan_ = decision.plan().version();
    regroup = !decision.regroup().empty() && !noted_regroup_;
    noted_regroup_ = noted_regroup_ || regroup;
  }
  if (new_plan) {
    const v1::Plan& next = decision.plan();
    Note(SessionEvent::Kind::kPlanChanged,
         absl::StrCat("plan version ", next.version(), ": accumulation=",
                      next.accumulation_steps(), " hook=", next.hook()));
  }
  if (regroup) Note(SessionEvent::Kind::kRegroup, decision.regroup());
}

void Session::Core::NoteNcclState() {
  // Its answer covers all ranks: one asks.
  if (rank != 0 || request.options.device.kind != Device::Kind::kCuda) return;
  const auto report = ReadNcclRas(request.options.ras_address);
  if (!report.ok()) {
    LogInfo("nccl_says_nothing", {{"job", request.options.job},
                                  {"reason", report.status().message()}});
    return;
  }
  for (absl::string_view line :
       absl::StrSplit(*report, '\n', absl::SkipWhitespace())) {
    LogWarning("nccl_says", {{"job", request.options.job}, {"line", line}});
  }
  Note(SessionEvent::Kind::kWarning, absl::StrCat("NCCL reports:\n", *report));
}

void Session::Core::OnEnd(const absl::Status& why) {
  LogError("generation_ended", {{"job", request.options.job},
                                {"rank", rank},
                                {"generation", generation},
                                {"reason", why.message()}});
  // Before the communicators that it describes are aborted.
  if (DetailOf(why).has_schedule_mismatch()) NoteNcclState();
  Close(why, /*abort_communicators=*/true);
  Note(SessionEvent::Kind::kGenerationEnded, std::string(why.message()),
       LostRank(why));
  std::vector<AbortCallback> callbacks;
  {
    MutexLock lock(&mutex_);
    reported_ = true;
    callbacks.swap(on_abort_);
  }
  for (const AbortCallback& callback : callbacks) callback(why);
}

void Session::Core::Close(const absl::Status& why, bool abort_communicators) {
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    status_ = why;
  }
  schedule_->End(why);
  if (fallback_ != nullptr) fallback_->End();
  groups_.End(why, abort_communicators);
  member->ended().Raise(why);
}

void Session::Core::OnAbort(AbortCallback callback) {
  absl::Status ended;
  {
    MutexLock lock(&mutex_);
    if (left_) return;
    if (!reported_) {
      on_abort_.push_back(std::move(callback));
      return;
    }
    ended = status_;
  }
  callback(ended);
}

absl::Status Session::Core::Leave(const Departure& departure) {
  bool over = false;
  std::unique_ptr<Core> unbegun;  // its end waits for a thread
  {
    MutexLock lock(&mutex_);
    // Who has left for the next generation may still leave for good.
    if (left_ && (departure.rejoin || left_for_good_)) return absl::OkStatus();
    left_ = true;
    left_for_good_ = !departure.rejoin;
    if (left_for_good_) unbegun = std::move(unbegun_);
    if (left_for_good_ && rejoining_ != nullptr) farewell_ = departure;
    on_abort_.clear();
    over = !status_.ok();
  }
  absl::Status left;
  // One that rejoins is waited for until its Join is answered.
  if (over) attachment_->Leaving(departure.rejoin);
  if (!over) {
    left = LeaveRunning(departure);
  } else if (unbegun != nullptr) {
    // The coordinator knows this worker as a member of that generation.
    unbegun->Leave(departure).IgnoreError();
  } else if (!departure.rejoin) {
    LeaveEnded(departure);
  }
  if (!departure.rejoin) EndRejoining(departure);
  events_.Close();
  return left;
}

absl::Status Session::Core::SendLeave(const Departure& departure,
                                      absl::Duration timeout) {
  v1::LeaveRequest leave;
  *leave.mutable_fence() = member->NewRequest();
  leave.set_reason(departure.reason);
  leave.set_failed(departure.failed);
  leave.set_rejoin(departure.rejoin);
  schedule_->AddFinalState(&leave);
  *leave.mutable_progress() = Progress();
  CallOptions call;
  call.timeout = timeout;
  return member->stub().Leave(leave, call).status();
}

// A generation that has ended has no members to leave. But its survivors are
// waited for, and this one need not be.
void Session::Core::LeaveEnded(const Departure& departure) {
  const absl::Status sent =
      SendLeave(departure, std::min(departure.timeout, kLeaveEndedTimeout));
  if (sent.ok() || absl::IsNotFound(sent)) return;
  LogInfo("farewell_not_heard", {{"job", request.options.job},
                                 {"rank", rank},
                                 {"generation", generation},
                                 {"error", sent.message()}});
}

absl::Status Session::Core::LeaveRunning(const Departure& departure) {
  attachment_->Leaving(departure.rejoin);
  const absl::Status end = absl::CancelledError(
      absl::StrCat("this worker has left the job: ", departure.reason));
  // Peers of a failed worker must not wait for it. Otherwise the coordinator
  // is notified first, so that it does not take the stream's end for a loss.
  if (departure.failed) Close(end, /*abort_communicators=*/true);
  absl::Status left = SendLeave(departure, departure.timeout);
  if (!departure.failed) Close(end, /*abort_communicators=*/false);
  if (departure.rejoin) {
    // The next generation waits for it until its Join is answered.
    attachment_->Left();
  } else {
    attachment_->Stop();
  }
  return left;
}

}  // namespace coxswain
