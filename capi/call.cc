#include "capi/call.h"

#include <atomic>
#include <cstddef>
#include <deque>
#include <thread>

#include "base/exception_status.h"
#include "base/mutex.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/wait_count.h"
#include "capi/table.h"

namespace coxswain::capi {
namespace {

// How long a thread without work is kept for the next.
constexpr absl::Duration kIdle = absl::Seconds(10);

struct Interrupt {
  cx_interrupt function = nullptr;
  void* data = nullptr;
};
thread_local Interrupt interrupt;
// Whether this thread is within that function: the calls of the library that it
// makes do not call it again.
thread_local bool asking = false;

// Of a thread whose waits are beside training.
thread_local std::optional<WaitCount::Background> background;

bool MayBeInterrupted() { return interrupt.function != nullptr && !asking; }

// Returns whether the wait is to end.
bool AskInterrupt() {
  struct Asking {
    Asking() { asking = true; }
    ~Asking() { asking = false; }
  };
  const Asking guard;
  return interrupt.function(interrupt.data) != 0;
}

// Threads that work for callers that wait in slices. As many as calls run at
// the same time. Never destroyed: they may outlast main().
class Helpers {
 public:
  static Helpers& Get() {
    static Helpers* const helpers = new Helpers;
    return *helpers;
  }

  // Fails as StartThread does: the task does not run.
  absl::Status Run(std::function<void()> task) {
    {
      MutexLock lock(&mutex_);
      ++running_;
      if (idle_ > tasks_.size()) {
        tasks_.push_back(std::move(task));
        added_.NotifyOne();
        return absl::OkStatus();
      }
    }
    absl::StatusOr<std::thread> thread =
        StartThread([this, first = std::move(task)]() mutable {
          RunTask(std::exchange(first, nullptr));
          Serve();
        });
    if (!thread.ok()) {
      NoteEnd();
      return thread.status();
    }
    thread->detach();
    return absl::OkStatus();
  }

  // Waits until none has work, `timeout` at most.
  void AwaitIdle(absl::Duration limit) {
    MutexLock lock(&mutex_);
    ended_.WaitFor(&mutex_, limit, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return running_ == 0;
    });
  }

 private:
  void RunTask(std::function<void()> task) {
    task();
    task = nullptr;
    NoteEnd();
  }

  void NoteEnd() {
    MutexLock lock(&mutex_);
    if (--running_ == 0) ended_.NotifyAll();
  }

  void Serve() {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(&mutex_);
        ++idle_;
        added_.WaitFor(&mutex_, kIdle, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return !tasks_.empty();
        });
        --idle_;
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      RunTask(std::move(task));
    }
  }

  Mutex mutex_;
  CondVar added_;
  CondVar ended_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  // Tasks that have not ended.
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::Status RunWork(const Work& work) { return WithoutExceptions(work.run); }

// Work on a thread of the library.
class ThreadCall : public Call {
 public:
  explicit ThreadCall(Work work)
      : deliver_(std::move(work.deliver)), cancel_(std::move(work.cancel)) {
    const absl::Status started =
        Helpers::Get().Run([end = end_, run = std::move(work.run),
                            beside = background.has_value()]() mutable {
          std::optional<WaitCount::Background> mark;
          if (beside) mark.emplace();
          const absl::Status status = RunWork({std::move(run), {}, {}});
          MutexLock lock(&end->mutex);
          end->status = status;
          end->came.NotifyAll();
        });
    if (started.ok()) return;
    MutexLock lock(&end_->mutex);
    end_->status = started;
  }

  std::optional<absl::Status> Wait(absl::Duration slice) override {
    std::optional<absl::Status> status = WaitForEnd(slice);
    if (!status.has_value()) return std::nullopt;
    if (taken_.exchange(true)) {
      return InvalidArgument("call", "is waited for by another thread, too");
    }
    return status->ok() && deliver_ ? deliver_() : *status;
  }

  void Cancel(const absl::Status& why, absl::Duration limit) override {
    if (cancel_ && cancel_(why)) WaitForEnd(limit);
  }

 private:
  struct End {
    Mutex mutex;
    CondVar came;
    std::optional<absl::Status> status ABSL_GUARDED_BY(mutex);
  };

  std::optional<absl::Status> WaitForEnd(absl::Duration slice) {
    MutexLock lock(&end_->mutex);
    end_->came.WaitFor(&end_->mutex, slice,
                       [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                         return end_->status.has_value();
                       });
    return end_->status;
  }

  std::atomic<bool> taken_{false};
  const std::shared_ptr<End> end_ = std::make_shared<End>();
  const std::function<absl::Status()> deliver_;
  const std::function<bool(const absl::Status&)> cancel_;
};

absl::Status Cancelled() {
  return absl::CancelledError("this program has cancelled the call");
}

// Cancels a call unless it has ended: also where a callback throws.
class CancelUnlessEnded {
 public:
  explicit CancelUnlessEnded(Call* call) : call_(call) {}
  ~CancelUnlessEnded() {
    if (call_ != nullptr) call_->Cancel(Cancelled(), absl::InfiniteDuration());
  }
  CancelUnlessEnded(const CancelUnlessEnded&) = delete;
  CancelUnlessEnded& operator=(const CancelUnlessEnded&) = delete;

  void Ended() { call_ = nullptr; }

 private:
  Call* call_;
};

absl::Status WaitToTheEnd(Call& call) {
  CancelUnlessEnded guard(&call);
  while (true) {
    const std::optional<absl::Status> status = call.Wait(kSlice);
    if (status.has_value()) {
      guard.Ended();
      return *status;
    }
    if (MayBeInterrupted() && AskInterrupt()) return Cancelled();
  }
}

Table<Call>& Calls() {
  static auto* const calls = new Table<Call>("cx_call");
  return *calls;
}

}  // namespace

Answer Await(cx_call* handle, const std::shared_ptr<Call>& call) {
  if (handle == nullptr) return WaitToTheEnd(*call);
  CancelUnlessEnded guard(call.get());
  const std::optional<absl::Status> status = call->Wait(kSlice);
  if (!status.has_value()) *handle = Calls().Add(call);
  guard.Ended();
  return status.has_value() ? Answer(*status) : Answer::Again();
}

Answer Do(cx_call* handle, Work work) {
  if (handle == nullptr && !MayBeInterrupted()) {
    absl::Status status = RunWork(work);
    return status.ok() && work.deliver ? work.deliver() : status;
  }
  return Await(handle, std::make_shared<ThreadCall>(std::move(work)));
}

void CancelCalls() {
  for (auto& [handle, call] : Calls().TakeAll()) {
    call->Cancel(absl::CancelledError("the process exits"),
                 absl::ZeroDuration());
  }
}

void AwaitHelpers(absl::Duration limit) { Helpers::Get().AwaitIdle(limit); }

}  // namespace coxswain::capi

namespace capi = coxswain::capi;

cx_code cx_wait(cx_call* call) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(call, "call"));
    COXSWAIN_ASSIGN_OR_RETURN(const auto found, capi::Calls().Find(*call));
    const std::optional<absl::Status> status = found->Wait(capi::kSlice);
    if (!status.has_value()) return capi::Answer::Again();
    capi::Calls().Take(*call).status().IgnoreError();
    *call = 0;
    return *status;
  });
}

cx_code cx_cancel(cx_call* call) {
  return capi::Guarded([&]() -> capi::Answer {
    COXSWAIN_RETURN_IF_ERROR(capi::CheckPresent(call, "call"));
    COXSWAIN_ASSIGN_OR_RETURN(const auto found, capi::Calls().Take(*call));
    *call = 0;
    found->Cancel(capi::Cancelled(), absl::InfiniteDuration());
    return absl::OkStatus();
  });
}

void cx_set_interrupt(cx_interrupt function, void* data) {
  capi::interrupt = {function, data};
}

int32_t cx_set_background(int32_t background) {
  const int32_t before = capi::background.has_value() ? 1 : 0;
  capi::background.reset();
  if (background != 0) capi::background.emplace();
  return before;
}
