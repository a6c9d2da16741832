#include "server/rpc/journal_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/grpc_status.h"
#include "base/mutex.h"
#include "server/describe/messages.h"
#include "server/rpc/call.h"

namespace coxswain::server {
namespace {

// At most half a megabyte, as long as events are.
constexpr int kPageEvents = 128;

absl::Status Check(const v1::JournalRequest& request) {
  if (request.after() >= 0 && request.term() >= 0 && request.since_ms() >= 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "after, term and since_ms must be at least 0, not ", request.after(),
      ", ", request.term(), " and ", request.since_ms()));
}

// Where one reader is in the journal.
class Cursor {
 public:
  Cursor(const JournalService::Source& source,
         const v1::JournalRequest& request)
      : source_(source), job_(request.job()) {
    // Sequences of another coordinator have no meaning here.
    const bool of_this = request.term() == 0 || request.term() == source.term;
    if (of_this) after_ = request.after();
    reads_on_ = after_ > 0;
    if (request.since_ms() > 0) {
      oldest_ =
          source.clock->WallTime() - absl::Milliseconds(request.since_ms());
    }
  }

  // The next page; whether anything is on it.
  bool Next(v1::JournalPage* page) {
    page->Clear();
    page->set_cluster_id(source_.cluster_id);
    page->set_term(source_.term);
    // What is too old is passed over, a page at a time.
    while (page->events().empty()) {
      const std::vector<JournalEvent> events =
          source_.journal->Read(job_, after_, kPageEvents);
      if (reads_on_ && source_.journal->forgotten() > after_) {
        page->set_gap(true);
      }
      if (events.empty()) return false;
      for (const JournalEvent& event : events) {
        if (event.time >= oldest_) *page->add_events() = ToProto(event);
      }
      after_ = events.back().sequence;
      reads_on_ = true;
    }
    return true;
  }

 private:
  const JournalService::Source& source_;
  const std::string job_;
  int64_t after_ = 0;
  bool reads_on_ = false;  // everything up to after_ has been read
  absl::Time oldest_ = absl::InfinitePast();
};

// One write at a time; the journal is the queue, so that a slow reader costs
// nothing. gRPC owns the object until OnDone.
class FollowCall : public grpc::ServerWriteReactor<v1::JournalPage> {
 public:
  FollowCall(const JournalService::Source& source, const FollowLimits& limits,
             std::atomic<int>* followers, grpc::CallbackServerContext* context,
             const v1::JournalRequest& request)
      : journal_(source.journal),
        followers_(followers),
        cursor_(source, request) {
    deadline_.emplace(context, limits.max_time,
                      "a stream of the journal is to be asked for anew");
    listener_ = journal_->Listen([this] { Pump(); });
    Pump();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (ok) return Pump();
    End(absl::CancelledError("the client has ended the call"));
  }
  void OnCancel() override {
    End(absl::CancelledError("the client has ended the call"));
  }
  void OnDone() override {
    journal_->Forget(listener_);
    --*followers_;
    delete this;
  }

 private:
  // Writes what is there, unless a write is under way: its end comes here too.
  // gRPC runs no reaction within these calls.
  void Pump() {
    MutexLock lock(&mutex_);
    if (writing_ || ended_) return;
    if (cursor_.Next(&page_)) {
      writing_ = true;
      StartWrite(&page_);
    } else if (journal_->closed()) {
      EndLocked(absl::UnavailableError("the coordinator is shutting down"));
    }
  }

  void End(const absl::Status& status) {
    MutexLock lock(&mutex_);
    EndLocked(status);
  }
  void EndLocked(const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ended_) return;
    ended_ = true;
    Finish(ToGrpcStatus(status));
  }

  Journal* const journal_;
  std::atomic<int>* const followers_;
  std::optional<CallDeadline> deadline_;
  uint64_t listener_ = 0;
  Mutex mutex_;
  Cursor cursor_ ABSL_GUARDED_BY(mutex_);
  v1::JournalPage page_;  // gRPC reads it while a write is under way
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

using RefusedCall = RefusedStream<v1::JournalPage>;

}  // namespace

JournalService::JournalService(Source source, const FollowLimits& limits)
    : source_(std::move(source)), limits_(limits) {}

JournalService::~JournalService() = default;

grpc::ServerUnaryReactor* JournalService::Read(
    grpc::CallbackServerContext* context, const v1::JournalRequest* request,
    v1::JournalPage* response) {
  const absl::Status checked = Check(*request);
  if (checked.ok()) Cursor(source_, *request).Next(response);
  return ReplyNow(context, checked);
}

grpc::ServerWriteReactor<v1::JournalPage>* JournalService::Follow(
    grpc::CallbackServerContext* context, const v1::JournalRequest* request) {
  const absl::Status checked = Check(*request);
  if (!checked.ok()) return new RefusedCall(checked);
  if (++followers_ > limits_.max_followers) {
    --followers_;
    return new RefusedCall(absl::ResourceExhaustedError(absl::StrCat(
        limits_.max_followers, " follow the journal already (max_followers)")));
  }
  return new FollowCall(source_, limits_, &followers_, context, *request);
}

}  // namespace coxswain::server
