#include "server/rpc/attach_call.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "base/logging.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "schedule/schedule_wire.h"
#include "schedule/ticket.h"
#include "server/rpc/proto_conversion.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

// What one stream can log of rings.
constexpr int kMaxRings = 16;
constexpr size_t kMaxRingBytes = 1024;
// Of a newcomer's report: a sentence with a host's name.
constexpr size_t kMaxDamageBytes = 512;
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

using schedule::TakePosition;
using schedule::TakeTicket;
using schedule::TakeVote;

// Returns nothing for one that no rank can be in.
std::optional<PipelinePlace> PlaceOf(const v1::PipelinePlace& proto) {
  PipelinePlace place;
  place.step = proto.step();
  place.action = proto.action();
  place.micro_batches = proto.micro_batches();
  place.schedule = proto.schedule();
  const int most = static_cast<int>(PipelinePlace::kMaxStages);
  if (!(proto.seconds() >= 0 && proto.seconds() <= 1e9)) return std::nullopt;
  place.in_it = absl::Seconds(proto.seconds());
  for (int i = 0; i < std::min(proto.passes_size(), most); ++i) {
    const v1::StagePasses& passes = proto.passes(i);
    place.passes.push_back({passes.stage(), passes.forward(), passes.backward(),
                            passes.backward_input(), passes.backward_weight()});
  }
  if (!place.Sensible()) return std::nullopt;
  return place;
}

// Of a worker's own account: bounded, so that sums with it make sense.
absl::Duration DurationOf(int64_t milliseconds) {
  return absl::Milliseconds(std::clamp<int64_t>(
      milliseconds, 0, absl::ToInt64Milliseconds(kLongest)));
}

Progress ProgressOf(const v1::Heartbeat& heartbeat) {
  Progress progress;
  progress.step = heartbeat.step();
  progress.collective_sequence = heartbeat.collective_sequence();
  progress.gradient_bytes = heartbeat.gradient_bytes();
  progress.payload_bytes = heartbeat.payload_bytes();
  progress.wire_bytes = heartbeat.wire_bytes();
  progress.micro_batches = heartbeat.micro_batches();
  progress.rounds = heartbeat.rounds();
  progress.bucket = heartbeat.bucket();
  progress.activity = heartbeat.activity();
  progress.waiting = DurationOf(heartbeat.waiting_ms());
  progress.interval = DurationOf(heartbeat.interval_ms());
  progress.error_norm = heartbeat.error_norm();
  progress.error_step = heartbeat.error_step();
  for (const v1::NewcomerReport& report : heartbeat.newcomers()) {
    // As many as it sends to, and as many that it sends nothing.
    if (progress.newcomers.size() == 2 * schedule::kMaxNewcomers) break;
    progress.newcomers.push_back({Incarnation(report.incarnation()),
                                  report.settled(),
                                  Shorten(report.damage(), kMaxDamageBytes)});
  }
  if (heartbeat.has_pipeline())
    progress.pipeline = PlaceOf(heartbeat.pipeline());
  return progress;
}

// Returns the newest ones; leaves out the rest.
std::vector<StepTiming> TimingsOf(const v1::Heartbeat& heartbeat) {
  const int most = static_cast<int>(Telemetry::kMaxTimings);
  std::vector<StepTiming> timings;
  for (int i = std::max(heartbeat.steps_size() - most, 0);
       i < heartbeat.steps_size(); ++i) {
    const v1::StepTiming& proto = heartbeat.steps(i);
    StepTiming timing;
    timing.step = proto.step();
    timing.payload_bytes = proto.payload_bytes();
    timing.wire_bytes = proto.wire_bytes();
    timing.compute = static_cast<float>(proto.compute());
    timing.wait = static_cast<float>(proto.wait());
    timing.exchange = static_cast<float>(proto.exchange());
    timings.push_back(timing);
  }
  return timings;
}

const char* KindOf(const v1::AttachRequest& request) {
  switch (request.kind_case()) {
    case v1::AttachRequest::kHello:
      return "hello";
    case v1::AttachRequest::kHeartbeat:
      return "heartbeat";
    case v1::AttachRequest::kTicket:
      return "ticket";
    case v1::AttachRequest::kVote:
      return "vote";
    case v1::AttachRequest::kPosition:
      return "position";
    case v1::AttachRequest::kPeersBroken:
      return "peers_broken";
    default:
      return "other";
  }
}

void FillAbort(const MembershipEvent& event, v1::Abort* abort) {
  abort->set_reason(event.reason);
  if (event.member.has_value()) {
    *abort->mutable_lost()->mutable_member() = ToProto(*event.member);
    abort->mutable_lost()->set_reason(event.reason);
  }
  v1::ErrorDetail detail = DetailOf(event.status);
  if (detail.has_schedule_mismatch()) {
    *abort->mutable_mismatch() = std::move(*detail.mutable_schedule_mismatch());
  }
}

absl::Status NoSuchMessage() {
  return absl::InvalidArgumentError(
      "an Attach stream is one hello, then positions, heartbeats, tickets, "
      "votes and broken peers");
}

v1::AttachEvent ToWire(const MembershipEvent& event) {
  v1::AttachEvent proto;
  switch (event.kind) {
    case MembershipEvent::Kind::kAbort:
      FillAbort(event, proto.mutable_abort());
      break;
    case MembershipEvent::Kind::kMemberLeft:
      proto.mutable_member_left()->set_reason(event.reason);
      *proto.mutable_member_left()->mutable_member() = ToProto(*event.member);
      break;
    case MembershipEvent::Kind::kFallback:
      proto.mutable_fallback_address()->set_rank(event.rank);
      proto.mutable_fallback_address()->set_address(event.address);
      break;
    case MembershipEvent::Kind::kClosed:  // is no message
      break;
  }
  return proto;
}

v1::AttachEvent ToMessage(const AttachEvent& event) {
  const auto* const message = std::get_if<schedule::Message>(&event);
  return message != nullptr ? schedule::ToWire(*message)
                            : ToWire(std::get<MembershipEvent>(event));
}

}  // namespace

AttachCall* AttachCall::Start(const RpcOptions& options, Membership* membership,
                              ScheduleRegistry* schedule,
                              const AttachWitness& witness,
                              grpc::CallbackServerContext* context) {
  std::shared_ptr<AttachCall> stream(
      new AttachCall(options, membership, schedule, witness));
  stream->self_ = stream;
  stream->hello_deadline_.emplace(context, options.first_message_timeout,
                                  "the stream's hello did not come");
  stream->StartRead(&stream->request_);
  return stream.get();
}

void AttachCall::OnReadDone(bool ok) {
  if (ok) {
    if (HandleRequest()) StartRead(&request_);
    return;
  }
  {
    MutexLock lock(&mutex_);
    if (closing_) return;  // What is queued may still be sent.
  }
  Disconnect(absl::CancelledError("the worker closed the stream"));
}

bool AttachCall::HandleRequest() {
  uint64_t attachment = 0;
  {
    MutexLock lock(&mutex_);
    if (closing_) return false;
    attachment = attachment_;
  }
  if (witness_.messages != nullptr) {
    witness_.messages->NoteMessage(KindOf(request_));
  }
  if (attachment == 0 && request_.has_hello()) {
    hello_deadline_.reset();
    return HandleHello(request_.hello());
  }
  const absl::Status status =
      attachment == 0 ? NoSuchMessage() : HandleMessage(attachment);
  if (!status.ok()) Disconnect(status);
  return status.ok();
}

absl::Status AttachCall::HandleMessage(uint64_t attachment) {
  switch (request_.kind_case()) {
    case v1::AttachRequest::kHeartbeat:
      NoteHeartbeat(request_.heartbeat(), attachment, witness_, membership_);
      NoteRing(request_.heartbeat().ring());
      return absl::OkStatus();
    case v1::AttachRequest::kTicket: {
      COXSWAIN_ASSIGN_OR_RETURN(const schedule::Ticket ticket,
                                TakeTicket(request_.mutable_ticket()));
      return schedule_->OnTicket(attached_, request_.ticket().stream(), ticket);
    }
    case v1::AttachRequest::kVote: {
      COXSWAIN_ASSIGN_OR_RETURN(const schedule::Vote vote,
                                TakeVote(request_.mutable_vote()));
      return schedule_->OnVote(attached_, request_.vote().stream(), vote);
    }
    case v1::AttachRequest::kPosition: {
      COXSWAIN_ASSIGN_OR_RETURN(const schedule::Decision last,
                                TakePosition(request_.mutable_position()));
      return schedule_->OnPosition(attached_,
                                   request_.position().last().stream(), last);
    }
    case v1::AttachRequest::kFallbackReport:
      return schedule_->OnFallbackReport(
          attached_, request_.fallback_report().fallback_epoch());
    case v1::AttachRequest::kPeersBroken: {
      const auto& ranks = request_.peers_broken().ranks();
      membership_->NotePeersBroken(attachment, {ranks.begin(), ranks.end()});
      return absl::OkStatus();
    }
    default:
      return NoSuchMessage();
  }
}

void AttachCall::NoteRing(const std::string& ring) {
  std::string text = OneLine(Shorten(ring, kMaxRingBytes));
  if (text.empty() || text == ring_ || rings_ == kMaxRings) return;
  ring_ = std::move(text);
  ++rings_;
  if (witness_.telemetry != nullptr) {
    witness_.telemetry->NoteRing(attached_, ring_);
  }
  LogInfo("ring_ordered", {{"job", attached_.job},
                           {"generation", attached_.generation.value()},
                           {"rank", attached_.rank},
                           {"ring", ring_}});
}

void NoteHeartbeat(const v1::Heartbeat& heartbeat, uint64_t attachment,
                   const AttachWitness& witness, Membership* membership) {
  const Progress progress = ProgressOf(heartbeat);
  const absl::StatusOr<AttachedRank> attached =
      membership->AttachedRankOf(attachment);
  // Refused only when the stream is being closed, with the reason.
  if (!attached.ok() || !membership->Heartbeat(attachment, progress).ok())
    return;
  if (witness.telemetry == nullptr) return;
  const auto plans = witness.plans->Get(attached->job);
  witness.telemetry->Note(*attached,
                          plans.ok() ? plans->current : schedule::Plan(),
                          progress, TimingsOf(heartbeat));
}

bool AttachCall::HandleHello(const v1::Hello& hello) {
  // Attaching ends the attachment before: a hello that is refused must not.
  const absl::Status valid =
      membership_->CheckFallbackAddress(hello.fallback_address());
  if (!valid.ok()) {
    Close(valid);
    return false;
  }
  const absl::StatusOr<uint64_t> attachment = membership_->Attach(
      FromProto(hello.fence()),
      [self = shared_from_this()](const AttachEvent& event) {
        self->HandleEvent(event);
      });
  if (!attachment.ok()) {
    Close(attachment.status());
    return false;
  }
  // None if the generation has ended meanwhile; what comes is ignored then.
  attached_ = membership_->AttachedRankOf(*attachment).value_or(AttachedRank());
  const schedule::Epoch epoch = schedule_->OnAttached(attached_);
  bool broken = false;
  {
    MutexLock lock(&mutex_);
    attachment_ = *attachment;
    hello_answered_ = true;
    v1::AttachEvent attached;
    attached.mutable_attached()->set_term(membership_->term().value());
    attached.mutable_attached()->set_fallback_epoch(epoch.fallback);
    queue_.push_front(std::move(attached));
    broken = broken_;
  }
  if (broken) membership_->Detach(*attachment);
  const absl::Status noted =
      membership_->NoteFallbackAddress(*attachment, hello.fallback_address());
  if (!noted.ok()) Disconnect(noted);
  Advance();
  return !broken && noted.ok();
}

void AttachCall::HandleEvent(const AttachEvent& event) {
  const auto* const news = std::get_if<MembershipEvent>(&event);
  if (news != nullptr && news->kind == MembershipEvent::Kind::kClosed) {
    Close(news->status);
    return;
  }
  bool overflow = false;
  {
    MutexLock lock(&mutex_);
    if (closing_) return;
    overflow = queue_.size() >= static_cast<size_t>(options_.max_queued_events);
    if (!overflow) queue_.push_back(ToMessage(event));
  }
  if (overflow) {
    Disconnect(absl::ResourceExhaustedError(
        absl::StrCat("the worker does not read its events; max_queued_events "
                     "is ",
                     options_.max_queued_events)));
    return;
  }
  Advance();
}

void AttachCall::Disconnect(const absl::Status& status) {
  uint64_t attachment = 0;
  {
    MutexLock lock(&mutex_);
    broken_ = true;
    queue_.clear();
    attachment = attachment_;
  }
  if (attachment != 0) membership_->Detach(attachment);
  Close(status);
}

void AttachCall::Close(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (closing_) return;
    closing_ = true;
    status_ = status;
    // A hello that was refused gets no answer but the status.
    if (!status.ok() && queue_.empty()) hello_answered_ = true;
  }
  Advance();
}

void AttachCall::Advance() {
  const v1::AttachEvent* event = nullptr;
  absl::Status status;
  {
    MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (!hello_answered_ && !broken_) return;
    if (!queue_.empty() && !broken_) {
      writing_ = true;
      event_ = std::move(queue_.front());
      queue_.pop_front();
      event = &event_;
    } else if (closing_) {
      finished_ = true;
      status = status_;
    } else {
      return;
    }
  }
  if (event != nullptr) {
    StartWrite(event);
  } else {
    Finish(ToGrpcStatus(status));
  }
}

void AttachCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
  }
  if (!ok) Disconnect(absl::CancelledError("the connection was lost"));
  Advance();
}

void AttachCall::OnCancel() {
  const auto self = shared_from_this();
  Disconnect(absl::CancelledError("the connection was lost"));
}

void AttachCall::OnDone() {
  const std::shared_ptr<AttachCall> self = std::move(self_);
}

}  // namespace coxswain::server
