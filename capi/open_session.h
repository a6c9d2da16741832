#ifndef COXSWAIN_CAPI_OPEN_SESSION_H_
#define COXSWAIN_CAPI_OPEN_SESSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "capi/coxswain.h"
#include "capi/exchange.h"
#include "capi/member_source.h"
#include "capi/table.h"
#include "client/checkpoint/async_checkpoint.h"
#include "client/checkpoint/training_state.h"
#include "client/group/process_group.h"
#include "client/reduce/bucket.h"
#include "client/session/session.h"
#include "schedule/plan.h"

namespace coxswain::capi {

// What a cx_session stands for: the session, and what the C interface remembers
// of it for the caller. Shared by the table of handles and by calls that wait.
// Thread-safe.
class OpenSession {
 public:
  OpenSession(std::unique_ptr<Session> session_in,
              absl::Duration collective_timeout_in,
              std::shared_ptr<CancelSignal> cancel_in, bool encrypts)
      : session(std::move(session_in)),
        collective_timeout(collective_timeout_in),
        cancel(std::move(cancel_in)),
        source(session.get(), encrypts),
        plan_(session->plan()) {}

  // Returns the plan that the next ticket follows. Only a decision that the
  // caller has taken changes it, so that all ranks change it at the same step.
  schedule::Plan plan() const {
    MutexLock lock(&mutex_);
    return plan_;
  }
  void Follow(const schedule::Plan& plan) {
    MutexLock lock(&mutex_);
    plan_ = plan;
  }

  // Keep what exchanges the gradients of a stream. AddExchange fails with
  // FAILED_PRECONDITION if the stream has one; ExchangeOf returns null if it
  // has none.
  absl::Status AddExchange(const std::string& stream,
                           std::shared_ptr<StreamExchange> exchange);
  std::shared_ptr<StreamExchange> ExchangeOf(const std::string& stream) const {
    MutexLock lock(&mutex_);
    const auto found = exchanges_.find(stream);
    return found == exchanges_.end() ? nullptr : found->second;
  }
  std::map<std::string, std::shared_ptr<StreamExchange>> exchanges() const {
    MutexLock lock(&mutex_);
    return exchanges_;
  }
  // End all of them with this error, and wait until none uses memory of the
  // caller. AwaitExchanges fails with DEADLINE_EXCEEDED after `limit`.
  void AbortExchanges(const absl::Status& why);
  absl::Status AwaitExchanges(absl::Duration limit);

  const std::unique_ptr<Session> session;
  const absl::Duration collective_timeout;
  // SessionOptions::cancel, which the sessions of all generations share.
  const std::shared_ptr<CancelSignal> cancel;
  // For newcomers, while they wait.
  MemberSource source;
  std::atomic<uint64_t> layout{0};
  // Held through each collective: they are started one at a time.
  Mutex collectives;
  // All ranks. The first collective asks the coordinator for it, and no other
  // one does: they go on without a coordinator.
  std::shared_ptr<ProcessGroup> world ABSL_GUARDED_BY(collectives);
  // One of them was cancelled: peers may have done it, and there are no more.
  std::atomic<bool> collectives_over{false};

  // Keep what the hook of a stream goes on with, until cx_exchange_open makes
  // it. TakeResumed returns null if there is nothing.
  void KeepResumed(const std::string& stream,
                   std::shared_ptr<const TrainingState> state) {
    MutexLock lock(&mutex_);
    resumed_[stream] = std::move(state);
  }
  std::shared_ptr<const TrainingState> TakeResumed(const std::string& stream) {
    MutexLock lock(&mutex_);
    const auto found = resumed_.extract(stream);
    return found.empty() ? nullptr : found.mapped();
  }

  // Held through each copy for a checkpoint.
  Mutex checkpoints;
  // Null until the first one is saved; then it stays.
  std::unique_ptr<AsyncCheckpoint> saver ABSL_GUARDED_BY(checkpoints);
  // The flags that it was made with.
  uint64_t saver_flags ABSL_GUARDED_BY(checkpoints) = 0;
  // Whose pieces the caller reads; null: none.
  std::shared_ptr<const TrainingState> loaded ABSL_GUARDED_BY(checkpoints);
  // How often the ranks have agreed on which one is the newest.
  int64_t agreements ABSL_GUARDED_BY(checkpoints) = 0;

 private:
  mutable Mutex mutex_;
  schedule::Plan plan_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<StreamExchange>> exchanges_
      ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const TrainingState>> resumed_
      ABSL_GUARDED_BY(mutex_);
};

// Returns all sessions that are open. Never destroyed.
Table<OpenSession>& Sessions();

// Makes this process the one that uses the library: sessions that are still
// open when it exits are left as failed, so that no rank waits until their
// leases run out. Does nothing once there is one.
void NoteProcess();

// Returns the session of a handle. Fails with INVALID_ARGUMENT if it is not
// open, and with FAILED_PRECONDITION in a forked process.
absl::StatusOr<std::shared_ptr<OpenSession>> Find(cx_session session);

// Returns the element type. Fails with INVALID_ARGUMENT if there is none.
absl::StatusOr<DType> DTypeOf(cx_dtype dtype);

// Returns parameters as the library knows them. Fails with INVALID_ARGUMENT,
// naming the one that makes no sense.
absl::StatusOr<std::vector<ParameterSpec>> ParametersOf(
    const cx_parameter* parameters, size_t count);

// Returns a hash of parameters, which all ranks must have in common.
uint64_t HashParameters(const std::vector<ParameterSpec>& parameters);

// Returns the name of a stream; NULL is that of the training loop. Fails with
// INVALID_ARGUMENT if it is not UTF-8.
absl::StatusOr<std::string> StreamOf(const char* stream);

// Returns memory of the caller. Fails with INVALID_ARGUMENT, naming the
// argument, if that makes no sense.
absl::StatusOr<Span> SpanOf(void* data, int64_t count, cx_dtype dtype,
                            absl::string_view argument);

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_OPEN_SESSION_H_
