#include "client/session/attachment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/mesh.h"
#include "base/start_thread.h"
#include "client/rpc/retry.h"
#include "client/rpc/retrying_stub.h"
#include "transport/error_detail.h"

namespace coxswain {
namespace {

// Returns whether opening the stream again may help after this end of it.
// `term` is the one that it was opened with.
bool IsLostConnection(const absl::Status& status, int64_t term) {
  // A coordinator that has been replaced, and has yet to notice.
  const std::optional<int64_t> theirs = TermOfStaleFence(status);
  if (theirs.has_value() && *theirs < term) return true;
  return IsWorthReopening(status);
}

bool ShowsTheEnd(const absl::Status& status) {
  return DetailOf(status).stale_fence().field() == "generation";
}

// Returns whether the coordinator has refused a stream of this generation as it
// runs a later one: it waits for none of the former's members any more.
bool RunsALaterOne(const absl::Status& refusal, int64_t generation) {
  int64_t running = 0;
  return ShowsTheEnd(refusal) &&
         absl::SimpleAtoi(DetailOf(refusal).stale_fence().expected(),
                          &running) &&
         running > generation;
}

absl::Status FromAbort(const v1::Abort& abort) {
  std::string text = abort.reason();
  const v1::Member& member = abort.lost().member();
  if (abort.has_lost() && !absl::StrContains(text, member.host())) {
    absl::StrAppend(&text, " (lost: rank ", member.rank(),
                    InParentheses(member.coordinates()), " on host ",
                    member.host(), ")");
  }
  v1::ErrorDetail detail;
  if (abort.has_lost()) {
    *detail.mutable_member_lost() = abort.lost();
  } else if (abort.has_mismatch()) {
    *detail.mutable_schedule_mismatch() = abort.mismatch();
  } else {
    return absl::AbortedError(text);
  }
  return WithDetail(absl::AbortedError(text), detail);
}

absl::Status Unreachable(const std::string& address, absl::Duration grace,
                         const absl::Status& last) {
  return absl::AbortedError(absl::StrCat(
      "the coordinator at ", address, " could not be reached for ",
      absl::FormatDuration(grace), " (last error: ", last.message(),
      "); is `coxswain serve` still running?"));
}

}  // namespace

Attachment::Attachment(std::shared_ptr<MemberContext> member,
                       const Options& options, Callbacks callbacks)
    : member_(std::move(member)),
      options_(options),
      callbacks_(std::move(callbacks)),
      lost_since_(member_->policy().clock->Now()) {
  absl::StatusOr<std::thread> thread = StartThread([this]() { Run(); });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  member_->term().Close();
  MutexLock lock(&mutex_);
  end_ = thread.status();
}

absl::Status Attachment::WaitUntilAttached(absl::Duration timeout) {
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return attached_ || FinishedLocked();
  });
  if (!end_.ok() || attached_) return end_;
  return absl::DeadlineExceededError(
      absl::StrCat("the coordinator at ", member_->stub().address(),
                   " did not accept the stream of this worker within ",
                   absl::FormatDuration(timeout)));
}

void Attachment::NoteStale(const absl::Status& status) {
  MutexLock lock(&mutex_);
  if (stale_.ok()) stale_ = status;
  changed_.NotifyAll();
}

void Attachment::Leaving(bool rejoins) {
  MutexLock lock(&mutex_);
  // Who has left for good does not come back, whichever thread is first.
  rejoins_ = rejoins && (rejoins_ || !leaving_);
  leaving_ = true;
  changed_.NotifyAll();
}

void Attachment::Left() {
  MutexLock lock(&mutex_);
  left_ = true;
  changed_.NotifyAll();
}

void Attachment::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Attachment::Run() {
  const RetryPolicy& policy = member_->policy();
  Backoff pauses(policy.base, std::min(policy.cap, options_.max_pause),
                 policy.random);
  while (const std::optional<absl::Status> end = ServeOneStream()) {
    if (!OnStreamEnd(*end, &pauses)) break;
    const absl::Duration pause = pauses.Next() + policy.Jitter(options_.spread);
    MutexLock lock(&mutex_);
    changed_.WaitFor(&mutex_, pause, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return FinishedLocked();
    });
    if (FinishedLocked()) break;
  }
  absl::Status end;
  {
    MutexLock lock(&mutex_);
    if (!stopping_ && !leaving_) end = end_;
  }
  if (!end.ok()) callbacks_.on_end(end);
  member_->term().Close();
  ShowLife();
}

void Attachment::ShowLife() {
  {
    MutexLock lock(&mutex_);
    if (!ended_there_ && !rejoins_) return;
  }
  const absl::Time deadline =
      member_->policy().clock->Now() + options_.show_life_for;
  // The coordinator counts its silence from the end on. That is the same moment
  // for all survivors, which are not to ask in step.
  absl::Duration more = member_->policy().Jitter(options_.sign_interval);
  while (callbacks_.silence_counts() &&
         PauseUnless([]() { return false; }, more) && MayAsk(deadline) &&
         AskToAttach()) {
    more = absl::ZeroDuration();
  }
}

bool Attachment::MayAsk(absl::Time deadline) {
  if (member_->policy().clock->Now() < deadline) return true;
  {
    MutexLock lock(&mutex_);
    // Its Join waits at the coordinator by now, or has a deadline of its own.
    if (rejoins_) return false;
  }
  LogError(
      "end_not_noticed",
      {{"job", member_->job()},
       {"generation", member_->fence().generation()},
       {"reason", absl::StrCat("the generation has ended, and this worker has "
                               "neither left nor joined the next one for ",
                               absl::FormatDuration(options_.show_life_for),
                               ": the others wait for it no longer")},
       {"next",
        "look where its program stands (gdb -p PID -batch -ex 'thread apply "
        "all bt', for Python py-spy dump --pid PID), and start it again"}});
  return false;
}

bool Attachment::AskToAttach() {
  bool taken = false, ended = false;
  absl::Status refusal;
  StreamCallbacks<v1::AttachEvent> callbacks;
  callbacks.on_event = [&](const v1::AttachEvent& event) {
    MutexLock lock(&mutex_);
    taken |= event.has_attached();
    changed_.NotifyAll();
  };
  callbacks.on_end = [&](const absl::Status& end) {
    MutexLock lock(&mutex_);
    ended = true;
    refusal = end;
    changed_.NotifyAll();
  };
  const auto stream = member_->stub().Attach(std::move(callbacks));
  v1::AttachRequest request;
  *request.mutable_hello()->mutable_fence() = member_->fence();
  (void)stream->Send(request);
  const bool awaited = PauseUnless([&]() { return taken || ended; });
  MutexLock lock(&mutex_);
  // A coordinator that does not know of the end, since another one has ended
  // the generation, takes it back. This process does not come back there.
  return awaited && !taken &&
         !RunsALaterOne(refusal, member_->fence().generation());
}

bool Attachment::PauseUnless(const std::function<bool()>& condition,
                             absl::Duration more) {
  MutexLock lock(&mutex_);
  changed_.WaitFor(&mutex_, options_.sign_interval + more,
                   [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                     return SilentLocked() || condition();
                   });
  return !SilentLocked();
}

bool Attachment::OnStreamEnd(const absl::Status& end, Backoff* pauses) {
  const bool lost = IsLostConnection(end, member_->term().Get());
  bool notify = false;
  {
    MutexLock lock(&mutex_);
    if (attached_) {
      attached_ = false;
      lost_since_ = member_->policy().clock->Now();
      pauses->Reset();
      notify = lost;
    }
    if (!lost) {
      ended_there_ |= ShowsTheEnd(end);
      EndLocked(WithDetailOf(end, absl::AbortedError(end.message())));
    } else if (GraceOverLocked()) {
      EndLocked(Unreachable(member_->stub().address(), options_.grace, end));
    }
    // The coordinator ends the stream of a member that has left.
    if (FinishedLocked() || (leaving_ && end.ok())) return false;
  }
  if (notify) {
    LogWarning("coordinator_lost", {{"job", member_->job()},
                                    {"coordinator", member_->stub().address()},
                                    {"error", end.message()}});
    callbacks_.on_lost(end);
  }
  return true;
}

std::unique_ptr<AttachStream> Attachment::OpenStream() {
  {
    MutexLock lock(&mutex_);
    stream_end_.reset();
  }
  StreamCallbacks<v1::AttachEvent> callbacks;
  callbacks.on_event = [this](const v1::AttachEvent& event) { OnEvent(event); };
  callbacks.on_end = [this](const absl::Status& status) {
    MutexLock lock(&mutex_);
    stream_end_ = status;
    changed_.NotifyAll();
  };
  auto stream = member_->stub().Attach(std::move(callbacks));
  v1::AttachRequest request;
  *request.mutable_hello()->mutable_fence() = member_->fence();
  request.mutable_hello()->set_fallback_address(options_.fallback_address);
  // The first request of a stream: refused only if the stream has ended, which
  // on_end reports.
  (void)stream->Send(request);
  return stream;
}

std::optional<absl::Status> Attachment::ServeOneStream() {
  std::unique_ptr<AttachStream> stream;
  {
    // The coordinator's answer may arrive before the stream is known: threads
    // that send something then wait for it.
    MutexLock lock(&stream_mutex_);
    stream = OpenStream();
    stream_ = stream.get();
  }
  std::optional<absl::Status> end = ServeStream(*stream);
  MutexLock lock(&stream_mutex_);
  stream_ = nullptr;
  return end;
}

std::optional<absl::Status> Attachment::ServeStream(AttachStream& stream) {
  bool stale = false;
  while (true) {
    bool beat = false, reattached = false;
    {
      MutexLock lock(&mutex_);
      const bool woken = changed_.WaitFor(
          &mutex_, stale ? options_.abort_margin : options_.heartbeat_interval,
          [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
            return FinishedLocked() || stream_end_.has_value() ||
                   stale != !stale_.ok() || reattached_;
          });
      if (FinishedLocked()) return std::nullopt;
      if (stream_end_.has_value()) return stream_end_;
      // The margin for a better reason has passed.
      if (stale && !woken) return stale_;
      stale = !stale_.ok();
      if (!attached_ && GraceOverLocked()) {
        return absl::UnavailableError("it does not answer");
      }
      reattached = std::exchange(reattached_, false);
      beat = attached_ && !woken;
    }
    if (reattached) callbacks_.on_reattached();
    if (!beat) continue;
    v1::AttachRequest request;
    *request.mutable_heartbeat() = callbacks_.progress();
    (void)stream.Send(request);  // the next one has its content, too
  }
}

void Attachment::OnEvent(const v1::AttachEvent& event) {
  if (event.has_member_left()) {
    const v1::Member& member = event.member_left().member();
    LogInfo("member_left", {{"job", member_->job()},
                            {"rank", member.rank()},
                            {"host", member.host()},
                            {"reason", event.member_left().reason()}});
  }
  if (event.has_abort()) {
    MutexLock lock(&mutex_);
    ended_there_ = true;
    EndLocked(FromAbort(event.abort()));
  }
  callbacks_.on_event(event);
  // Last: what a worker sends once it is attached rests on the event.
  if (event.has_attached()) OnAttached(event.attached().term());
}

void Attachment::OnAttached(int64_t term) {
  // Without a term in its answer it is of the term that was asked for.
  const int64_t before = member_->term().Get();
  term = std::max(term, before);
  bool again = false;
  {
    MutexLock lock(&mutex_);
    attached_ = true;
    again = std::exchange(ever_attached_, true);
    reattached_ = again;
    changed_.NotifyAll();
  }
  callbacks_.on_attached(term, again);
  // Last: it wakes calls, a Leave among them, which are to follow the position
  // that the schedule reports.
  member_->term().Raise(term);
  if (!again) return;
  LogInfo("reattached", {{"job", member_->job()},
                         {"coordinator", member_->stub().address()},
                         {"term_before", before},
                         {"term", term}});
}

bool Attachment::Send(const v1::AttachRequest& request) {
  {
    MutexLock lock(&mutex_);
    if (!attached_ || FinishedLocked()) return false;
  }
  MutexLock lock(&stream_mutex_);
  return stream_ != nullptr && stream_->Send(request);
}

bool Attachment::GraceOverLocked() const {
  return member_->policy().clock->Now() - lost_since_ >= options_.grace;
}

void Attachment::EndLocked(const absl::Status& why) {
  if (end_.ok()) end_ = why;
  changed_.NotifyAll();
}

}  // namespace coxswain
