#include "cli/logs.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/backoff.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "cli/launch/signals.h"
#include "server/describe/json.h"

namespace coxswain {
namespace {

// Longer than the coordinator lets a stream live.
constexpr absl::Duration kStream = absl::Hours(1);

absl::Status OutputClosed() {
  return absl::UnavailableError("cannot write to stdout");
}

// One `coxswain logs`.
class Reader {
 public:
  Reader(const LogsOptions& options, const LogsWorld& world)
      : options_(options), world_(world), pauses_(world.retry.Pauses()) {
    request_.set_job(options.job);
    request_.set_since_ms(absl::ToInt64Milliseconds(options.since));
  }

  absl::Status Run() {
    COXSWAIN_RETURN_IF_ERROR(Explain(CatchUp()));
    if (!shown_) {
      world_.remark(options_.job.empty()
                        ? "the journal has no such events"
                        : absl::StrCat("the journal has no such events of job ",
                                       options_.job));
    }
    while (options_.follow && !stopped()) {
      const absl::Status ended = lost_ ? CatchUp() : Follow();
      if (stopped()) break;
      if (ended.ok() || absl::IsDeadlineExceeded(ended)) continue;
      if (!IsLoss(ended) || stdout_gone_) return Explain(ended);
      NoteLoss(ended);
      world_.stop->WaitFor(pauses_.Next());
    }
    return absl::OkStatus();
  }

 private:
  bool stopped() const { return !world_.stop->status().ok(); }

  // All that is there now.
  absl::Status CatchUp() {
    CallOptions call;
    call.timeout = options_.timeout;
    call.cancel = world_.stop;
    while (true) {
      const auto page = world_.stub->Read(request_, call);
      COXSWAIN_RETURN_IF_ERROR(page.status());
      COXSWAIN_RETURN_IF_ERROR(Take(*page));
      if (page->events().empty()) return absl::OkStatus();
    }
  }

  absl::Status Follow() {
    CallOptions call;
    call.timeout = kStream;
    call.cancel = world_.stop;
    const auto stream = world_.stub->Follow(request_, call);
    v1::JournalPage page;
    while (stream->Read(&page)) COXSWAIN_RETURN_IF_ERROR(Take(page));
    return stream->Finish();
  }

  absl::Status Take(const v1::JournalPage& page) {
    NoteOrigin(page);
    if (page.gap()) {
      world_.remark("the journal dropped events before they were read");
    }
    const LogFormat format =
        options_.json ? LogFormat::kJson : LogFormat::kText;
    std::string lines;
    for (const v1::JournalEvent& event : page.events()) {
      absl::StrAppend(&lines, server::EventLine(event, format), "\n");
      request_.set_after(event.sequence());
    }
    shown_ = shown_ || !lines.empty();
    if (lines.empty() || world_.write(lines)) return absl::OkStatus();
    stdout_gone_ = true;
    return OutputClosed();
  }

  // Returns whether the coordinator may answer later, after CatchUp or Follow
  // has ended like this. One that has too many readers refuses the stream.
  bool IsLoss(const absl::Status& ended) const {
    return lost_ ? IsWorthRepeating(ended, world_.stop)
                 : IsWorthReopening(ended) && !absl::IsResourceExhausted(ended);
  }

  void NoteLoss(const absl::Status& why) {
    if (lost_) return;
    lost_ = true;
    world_.remark(absl::StrCat("the coordinator at ", world_.stub->address(),
                               " cannot be reached: ", why.message(),
                               "; trying again"));
  }

  void NoteOrigin(const v1::JournalPage& page) {
    if (request_.term() != 0 && page.term() != request_.term()) {
      world_.remark(
          absl::StrCat("the coordinator was started again (term ", page.term(),
                       "): its journal begins anew, without earlier events"));
      request_.set_after(0);
      // All of it is new, and clocks may have been set meanwhile.
      request_.set_since_ms(0);
    } else if (lost_) {
      world_.remark("the coordinator is back");
    }
    if (lost_) pauses_.Reset();
    lost_ = false;
    request_.set_term(page.term());
  }

  absl::Status Explain(const absl::Status& error) const {
    if (error.ok() || stdout_gone_) return error;
    return absl::Status(
        error.code(),
        absl::StrCat("the coordinator at ", world_.stub->address(),
                     " did not show its journal: ", error.message()));
  }

  const LogsOptions& options_;
  const LogsWorld& world_;
  Backoff pauses_;
  v1::JournalRequest request_;
  bool shown_ = false;
  bool lost_ = false;
  bool stdout_gone_ = false;
};

bool WriteToStdout(const std::string& lines) {
  return std::fputs(lines.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
}

void RemarkOnStderr(const std::string& remark) {
  std::fprintf(stderr, "coxswain: %s\n", remark.c_str());
}

}  // namespace

absl::Status ShowLogs(const LogsOptions& options, const LogsWorld& world) {
  return Reader(options, world).Run();
}

absl::Status ShowLogs(const LogsOptions& options) {
  HeldSignals signals({SIGINT, SIGTERM});
  COXSWAIN_ASSIGN_OR_RETURN(const auto watch, StopWatch::Start(signals));
  const auto stub = ConnectJournal(options.coordinator, options.security);
  LogsWorld world;
  world.stub = stub.get();
  world.stop = &watch->stop();
  world.write = WriteToStdout;
  world.remark = RemarkOnStderr;
  return ShowLogs(options, world);
}

}  // namespace coxswain
