#include "client/store/store_client.h"

#include <deque>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "base/wait_count.h"
#include "client/rpc/member_context.h"
#include "client/rpc/retry.h"

namespace coxswain {
namespace {

// Of a reader that is slower than the coordinator's own queue; the newest
// count.
constexpr size_t kMaxQueued = 256;
// A question whose answer is there at once.
constexpr absl::Duration kAskTimeout = absl::Seconds(30);

// What the threads of the stub and the thread of the watch share.
struct Inbox {
  Mutex mutex;
  CondVar changed;
  bool stop ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;  // the generation
  std::deque<StoreEvent> events ABSL_GUARDED_BY(mutex);
  std::optional<absl::Status> end ABSL_GUARDED_BY(mutex);  // of the stream
  CancelSignal cancel;  // ends the watch's own calls

  void Wake(bool Inbox::*flag) {
    {
      MutexLock lock(&mutex);
      this->*flag = true;
      changed.NotifyAll();
    }
    cancel.Raise(absl::CancelledError("the watch is over"));
  }
};

// A watch of a key that outlives a coordinator that is started again: its
// stream is opened again, and what has changed meanwhile is reported. Ends with
// the generation. The callbacks run on a thread of its own.
class ReopeningWatch : public StoreWatch {
 public:
  ReopeningWatch(std::shared_ptr<MemberContext> member, std::string key,
                 std::function<void(const StoreEvent&)> on_event,
                 std::function<void(const absl::Status&)> on_end)
      : member_(std::move(member)),
        key_(std::move(key)),
        on_event_(std::move(on_event)),
        on_end_(std::move(on_end)),
        ended_id_(member_->ended().OnRaise(
            [inbox = inbox_]() { inbox->Wake(&Inbox::ended); })) {
    thread_ = std::thread([this]() { Run(); });
  }
  ~ReopeningWatch() override {
    inbox_->Wake(&Inbox::stop);
    thread_.join();
    member_->ended().Forget(ended_id_);
  }

 private:
  void Run() {
    Backoff pauses = member_->policy().Pauses();
    while (true) {
      const std::optional<absl::Status> end = ServeOneStream();
      if (!end.has_value()) return;
      const absl::Status why = member_->Outcome(*end);
      if (!MayReopen(why)) return on_end_(why);
      if (opened_) pauses.Reset();
      opened_ = false;
      if (!Pause(pauses.Next())) return;
    }
  }

  bool MayReopen(const absl::Status& end) const {
    // Another attempt is no cure of a limit.
    if (end.ok() || absl::IsResourceExhausted(end)) return false;
    if (!member_->ended().status().ok()) return false;
    return IsWorthReopening(end) || TermOfStaleFence(end).has_value();
  }

  // False: to stop. The end of the generation cuts the pause short.
  bool Pause(absl::Duration pause) {
    MutexLock lock(&inbox_->mutex);
    inbox_->changed.WaitFor(&inbox_->mutex, pause,
                            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                              return inbox_->stop || inbox_->ended;
                            });
    return !inbox_->stop;
  }

  // How the stream has ended; nullopt: to stop.
  std::optional<absl::Status> ServeOneStream() {
    {
      MutexLock lock(&inbox_->mutex);
      if (inbox_->stop) return std::nullopt;
      if (inbox_->ended) return member_->ended().status();
      inbox_->end.reset();
    }
    const std::unique_ptr<EventStream> stream = OpenStream();
    first_ = true;
    if (last_.has_value() && !last_->deleted) LookForDeletion();
    while (true) {
      std::optional<StoreEvent> event;
      {
        MutexLock lock(&inbox_->mutex);
        // Ended by the stream, or by the destructor.
        inbox_->changed.WaitForWork(
            &inbox_->mutex, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
              return inbox_->stop || inbox_->end.has_value() ||
                     !inbox_->events.empty();
            });
        if (inbox_->stop) return std::nullopt;
        if (inbox_->events.empty()) return inbox_->end;
        event = std::move(inbox_->events.front());
        inbox_->events.pop_front();
      }
      Deliver(*event);
    }
  }

  std::unique_ptr<EventStream> OpenStream() {
    v1::WatchRequest request;
    *request.mutable_fence() = member_->fence();
    request.set_key(key_);
    StreamCallbacks<v1::WatchEvent> callbacks;
    callbacks.on_event = [inbox = inbox_](const v1::WatchEvent& event) {
      MutexLock lock(&inbox->mutex);
      if (inbox->events.size() >= kMaxQueued) inbox->events.pop_front();
      inbox->events.push_back({event.value(), event.deleted()});
      inbox->changed.NotifyAll();
    };
    callbacks.on_end = [inbox = inbox_](const absl::Status& status) {
      MutexLock lock(&inbox->mutex);
      inbox->end = status;
      inbox->changed.NotifyAll();
    };
    return member_->stub().Watch(request, &member_->ended(),
                                 std::move(callbacks));
  }

  // A stream begins with the value, if there is one. It does not report that
  // there was one before which has been deleted.
  void LookForDeletion() {
    v1::GetRequest request;
    *request.mutable_fence() = member_->fence();
    request.set_key(key_);
    CallOptions call;
    call.timeout = kAskTimeout;
    call.cancel = &inbox_->cancel;
    const absl::Status found = member_->stub().StoreGet(request, call).status();
    if (absl::IsNotFound(found)) Deliver({"", /*deleted=*/true});
  }

  void Deliver(const StoreEvent& event) {
    opened_ = true;
    // The value that a stream begins with may be the one that was seen last.
    const bool repeated = std::exchange(first_, false) && last_.has_value() &&
                          last_->deleted == event.deleted &&
                          last_->value == event.value;
    if (repeated) return;
    last_ = event;
    on_event_(event);
  }

  const std::shared_ptr<MemberContext> member_;
  const std::string key_;
  const std::function<void(const StoreEvent&)> on_event_;
  const std::function<void(const absl::Status&)> on_end_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  const uint64_t ended_id_;
  // Of the thread.
  bool first_ = true;    // nothing has come on this stream
  bool opened_ = false;  // something has, on the last one
  std::optional<StoreEvent> last_;
  std::thread thread_;
};

}  // namespace

absl::Status StoreClient::Set(absl::string_view key, absl::string_view value) {
  v1::SetRequest request;
  *request.mutable_fence() = member_->NewRequest();
  request.set_key(std::string(key));
  request.set_value(std::string(value));
  return member_->Outcome(
      member_->stub().StoreSet(request, member_->Call()).status());
}

absl::StatusOr<std::string> StoreClient::Get(absl::string_view key,
                                             absl::Duration timeout) {
  v1::GetRequest request;
  *request.mutable_fence() = member_->fence();
  request.set_key(std::string(key));
  request.set_timeout_ms(TimeoutMillis(timeout));
  WaitCount::Scope waits(member_->waits().get());
  auto response =
      member_->stub().StoreGet(request, member_->WaitingCall(timeout));
  if (absl::IsDeadlineExceeded(response.status())) waits.GoesOn();
  if (!response.ok()) return member_->Outcome(response.status());
  return std::move(*response->mutable_value());
}

absl::StatusOr<int64_t> StoreClient::Add(absl::string_view key,
                                         int64_t amount) {
  v1::AddRequest request;
  *request.mutable_fence() = member_->NewRequest();
  request.set_key(std::string(key));
  request.set_amount(amount);
  auto response = member_->stub().StoreAdd(request, member_->Call());
  if (!response.ok()) return member_->Outcome(response.status());
  return response->value();
}

absl::StatusOr<CompareSetResult> StoreClient::CompareSet(
    absl::string_view key, absl::string_view expected,
    absl::string_view desired) {
  v1::CompareSetRequest request;
  *request.mutable_fence() = member_->NewRequest();
  request.set_key(std::string(key));
  request.set_expected(std::string(expected));
  request.set_desired(std::string(desired));
  auto response = member_->stub().StoreCompareSet(request, member_->Call());
  if (!response.ok()) return member_->Outcome(response.status());
  return CompareSetResult{std::move(*response->mutable_value()),
                          response->swapped()};
}

absl::Status StoreClient::Wait(const std::vector<std::string>& keys,
                               absl::Duration timeout) {
  v1::WaitRequest request;
  *request.mutable_fence() = member_->fence();
  request.mutable_keys()->Assign(keys.begin(), keys.end());
  request.set_timeout_ms(TimeoutMillis(timeout));
  WaitCount::Scope waits(member_->waits().get());
  const absl::Status status =
      member_->stub()
          .StoreWait(request, member_->WaitingCall(timeout))
          .status();
  if (absl::IsDeadlineExceeded(status)) waits.GoesOn();
  return member_->Outcome(status);
}

absl::StatusOr<bool> StoreClient::DeleteKey(absl::string_view key) {
  v1::DeleteKeyRequest request;
  *request.mutable_fence() = member_->NewRequest();
  request.set_key(std::string(key));
  auto response = member_->stub().StoreDeleteKey(request, member_->Call());
  if (!response.ok()) return member_->Outcome(response.status());
  return response->existed();
}

absl::StatusOr<int64_t> StoreClient::CountKeys(absl::string_view prefix) {
  v1::CountKeysRequest request;
  *request.mutable_fence() = member_->NewRequest();
  request.set_prefix(std::string(prefix));
  auto response = member_->stub().StoreCountKeys(request, member_->Call());
  if (!response.ok()) return member_->Outcome(response.status());
  return response->count();
}

std::unique_ptr<StoreWatch> StoreClient::Watch(
    absl::string_view key, std::function<void(const StoreEvent&)> on_event,
    std::function<void(const absl::Status&)> on_end) {
  return std::make_unique<ReopeningWatch>(
      member_, std::string(key), std::move(on_event), std::move(on_end));
}

absl::Status StoreRendezvous::Set(absl::string_view key,
                                  absl::string_view value) {
  return store_.Set(absl::StrCat(prefix_, "/", key), value);
}

absl::StatusOr<std::string> StoreRendezvous::Get(absl::string_view key,
                                                 absl::Duration timeout) {
  return store_.Get(absl::StrCat(prefix_, "/", key), timeout);
}

}  // namespace coxswain
