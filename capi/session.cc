#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "capi/call.h"
#include "capi/open_session.h"
#include "capi/table.h"

namespace coxswain::capi {
namespace {

// How long cx_close waits for exchanges beyond the timeout of a collective: one
// that was aborted has nothing to wait for but a thread.
constexpr absl::Duration kExchangeTimeout = absl::Seconds(10);

// The process whose threads the library has; 0: none yet.
std::atomic<pid_t> owner{0};

// How long the exit of the process waits for the library's threads.
constexpr absl::Duration kExitTimeout = absl::Seconds(1);

// Sessions that are open when the process exits: the other ranks need not wait
// until their leases run out.
void CloseAll() {
  if (!CheckProcess().ok()) return;
  CancelCalls();
  for (auto& [handle, open] : Sessions().TakeAll()) {
    open->session->Leave("the process exited without cx_leave", true)
        .IgnoreError();
  }
  AwaitHelpers(kExitTimeout);
}

// Checks for events in slices: a call that is cancelled takes none of them.
class EventCall : public Call {
 public:
  EventCall(std::shared_ptr<OpenSession> open, int64_t timeout_ms,
            const Result<cx_event>& result)
      : open_(std::move(open)),
        timeout_(absl::Milliseconds(timeout_ms)),
        deadline_(Clock::Real()->Now() + timeout_),
        result_(result) {}

  std::optional<absl::Status> Wait(absl::Duration slice) override {
    const absl::Duration left =
        std::max(absl::ZeroDuration(), deadline_ - Clock::Real()->Now());
    auto event = open_->session->events().Next(std::min(slice, left));
    if (absl::IsDeadlineExceeded(event.status())) {
      if (left > slice) return std::nullopt;
      return absl::DeadlineExceededError(absl::StrCat(
          "no event of this session within ", absl::FormatDuration(timeout_)));
    }
    if (!event.ok()) return event.status();
    thread_local std::string text;
    text = std::move(event->text);
    static_assert(static_cast<int>(SessionEvent::Kind::kGenerationEnded) ==
                  CX_EVENT_GENERATION_ENDED);
    cx_event filled{};
    filled.kind = static_cast<cx_event_kind>(event->kind);
    filled.rank = event->rank;
    filled.generation = event->generation;
    filled.term = event->term;
    filled.text = text.c_str();
    result_.Fill(filled);
    return absl::OkStatus();
  }
  void Cancel(const absl::Status&, absl::Duration) override {}

 private:
  const std::shared_ptr<OpenSession> open_;
  const absl::Duration timeout_;
  const absl::Time deadline_;
  const Result<cx_event> result_;
};

void FillMember(const JobMember& member, const Result<cx_member_info>& result) {
  thread_local JobMember kept;
  kept = member;
  cx_member_info filled{};
  filled.rank = kept.rank;
  filled.local_rank = kept.local_rank;
  filled.node = kept.identity.node.c_str();
  filled.slot = kept.identity.slot;
  filled.host = kept.host.c_str();
  filled.address = kept.address.c_str();
  result.Fill(filled);
}

}  // namespace

absl::Status CheckProcess() {
  const pid_t known = owner.load();
  if (known == 0 || known == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("process ", getpid(), " was forked from process ", known,
                   ", which uses Coxswain: only that one can go on with it"));
}

uint64_t NextHandle() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

Table<OpenSession>& Sessions() {
  static auto* const sessions = new Table<OpenSession>("cx_session");
  return *sessions;
}

absl::Status OpenSession::AddExchange(
    const std::string& stream, std::shared_ptr<StreamExchange> exchange) {
  MutexLock lock(&mutex_);
  if (exchanges_.emplace(stream, std::move(exchange)).second) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("two threads open the exchange of the stream \"", stream,
                   "\" at the same time"));
}

void OpenSession::AbortExchanges(const absl::Status& why) {
  for (const auto& [stream, exchange] : exchanges()) {
    exchange->stream().Abort(why);
  }
}

absl::Status OpenSession::AwaitExchanges(absl::Duration limit) {
  const absl::Time deadline = Clock::Real()->Now() + limit;
  for (const auto& [stream, exchange] : exchanges()) {
    const absl::Duration left =
        std::max(absl::ZeroDuration(), deadline - Clock::Real()->Now());
    if (exchange->stream().Wait(left).has_value()) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("the session is closed, but the exchange of the stream \"",
                     stream, "\" has not ended ", absl::FormatDuration(limit),
                     " after it was aborted: keep the memory of its buckets"));
  }
  return absl::OkStatus();
}

void NoteProcess() {
  pid_t none = 0;
  if (owner.compare_exchange_strong(none, getpid())) std::atexit(CloseAll);
}

absl::StatusOr<std::shared_ptr<OpenSession>> Find(cx_session session) {
  return Sessions().Find(session);
}

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_leave(cx_session session, const char* reason, int32_t failed,
                 cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string why,
                              capi::TextOf(reason, "reason"));
    capi::Work work;
    work.run = [open, why, failed]() {
      return open->session->Leave(why, failed != 0);
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_close(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Sessions().Take(session));
    open->AbortExchanges(
        absl::CancelledError("this program has closed the session"));
    open->session->Leave("the session was closed without cx_leave", true)
        .IgnoreError();
    return open->AwaitExchanges(open->collective_timeout +
                                capi::kExchangeTimeout);
  });
}

cx_code cx_info(cx_session session, cx_session_info* info) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                              capi::Result<cx_session_info>::Of(info, "info"));
    thread_local std::string job;
    job = open->session->job();
    cx_session_info filled{};
    filled.rank = open->session->rank();
    filled.world_size = open->session->world_size();
    filled.local_rank = open->session->local_rank();
    filled.generation = open->session->generation();
    filled.job = job.c_str();
    result.Fill(filled);
    return absl::OkStatus();
  });
}

cx_code cx_member(cx_session session, int32_t rank, cx_member_info* member,
                  cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto result, capi::Result<cx_member_info>::Of(member, "member"));
    if (rank < 0 || rank >= open->session->world_size()) {
      return capi::InvalidArgument(
          "rank", absl::StrCat("is ", rank, ", and the job has ranks 0 to ",
                               open->session->world_size() - 1));
    }
    const auto found = std::make_shared<coxswain::JobMember>();
    capi::Work work;
    work.run = [open, rank, found]() -> absl::Status {
      COXSWAIN_ASSIGN_OR_RETURN(auto members, open->session->Members());
      *found = std::move(members.at(static_cast<size_t>(rank)));
      return absl::OkStatus();
    };
    work.deliver = [found, result]() {
      capi::FillMember(*found, result);
      return absl::OkStatus();
    };
    return capi::Do(call, std::move(work));
  });
}

cx_code cx_status(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    return open->session->status();
  });
}

cx_code cx_next_event(cx_session session, int64_t timeout_ms, cx_event* event,
                      cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_ASSIGN_OR_RETURN(const auto result,
                              capi::Result<cx_event>::Of(event, "event"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    return capi::Await(
        call, std::make_shared<capi::EventCall>(open, timeout_ms, result));
  });
}

cx_code cx_report_progress(cx_session session, int64_t steps) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    open->session->ReportProgress(steps);
    return absl::OkStatus();
  });
}

cx_code cx_report_wait(cx_session session, int32_t waits) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    open->session->ReportWait(waits != 0);
    return absl::OkStatus();
  });
}

cx_code cx_note_micro_batch(cx_session session) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    open->session->schedule().NoteMicroBatch();
    return absl::OkStatus();
  });
}

cx_code cx_barrier(cx_session session, const char* tag, int64_t timeout_ms,
                   cx_call* call) {
  return capi::Guarded(call, [&]() -> capi::Answer {
    COXSWAIN_ASSIGN_OR_RETURN(const auto open, capi::Find(session));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(tag, "tag"));
    COXSWAIN_ASSIGN_OR_RETURN(const std::string name, capi::TextOf(tag, "tag"));
    COXSWAIN_RETURN_IF_ERROR(capi::CheckTimeout(timeout_ms));
    capi::Work work;
    work.run = [open, name, timeout_ms]() {
      return open->session->Barrier(/*group=*/"", name,
                                    absl::Milliseconds(timeout_ms));
    };
    return capi::Do(call, std::move(work));
  });
}

int32_t cx_abi_version(void) { return CX_ABI_MAJOR << 16 | CX_ABI_MINOR; }

const char* cx_version(void) { return coxswain::kVersion; }
