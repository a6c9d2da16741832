#include "client/comm/executor.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// Returns whether the communicator can go on after an operation ended so.
bool IsHarmless(const absl::Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status);
}

// It has a bound of its own.
absl::Status Await(const Executor::Completion& complete) {
  return complete(absl::InfiniteFuture())
      .value_or(absl::InternalError("an operation did not end"));
}

}  // namespace

Executor::Executor(std::function<void(const absl::Status&)> wake)
    : wake_(std::move(wake)), assistance_(std::make_shared<Assistance>()) {
  MutexLock lock(&assistance_->mutex);
  assistance_->executor = this;
}

Executor::~Executor() {
  Abort("the communicator was destroyed");
  {
    MutexLock lock(&assistance_->mutex);
    assistance_->executor = nullptr;
    // They have been woken, as the threads have.
    assistance_->changed.WaitForWork(&assistance_->mutex,
                                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                       return assistance_->running == 0;
                                     });
  }
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    for (Lane* lane : {&ordered_, &beside_}) {
      for (auto& thread : lane->threads) threads.push_back(std::move(thread));
    }
  }
  for (auto& thread : threads) thread.join();
}

absl::Status Executor::stopped() const {
  MutexLock lock(&mutex_);
  return stopped_;
}

WorkPtr Executor::Nothing() { return Work::Ended(stopped()); }

WorkPtr Executor::EnqueueLocked(Lane* lane, size_t max_threads,
                                Operation operation) {
  if (!stopped_.ok()) return Work::Ended(stopped_);
  if (lane == &ordered_ && assisted_.has_value()) {
    QueueLocked(*std::exchange(assisted_, std::nullopt));
  }
  auto work = std::make_shared<Work>();
  lane->tasks.push_back({std::move(operation), work});
  NotifyLocked(lane, max_threads);
  return work;
}

void Executor::NotifyLocked(Lane* lane, size_t max_threads) {
  if (lane->idle < lane->tasks.size() && lane->threads.size() < max_threads) {
    lane->threads.emplace_back([this, lane] { Serve(lane); });
  } else {
    lane->changed.NotifyAll();
  }
}

WorkPtr Executor::TryRunAssisted(const std::function<void()>& begin,
                                 Completion complete) {
  MutexLock lock(&mutex_);
  if (!stopped_.ok()) return Work::Ended(stopped_);
  if (assisted_.has_value() || ordered_.busy || !ordered_.tasks.empty()) {
    return nullptr;
  }
  begin();
  const uint64_t number = ++last_assisted_;
  WorkPtr work =
      Work::Assisted([assistance = assistance_, number](absl::Time until) {
        Executor* executor = nullptr;
        {
          MutexLock assistance_lock(&assistance->mutex);
          executor = assistance->executor;
          if (executor == nullptr) return;
          ++assistance->running;
        }
        executor->Assist(number, until);
        MutexLock assistance_lock(&assistance->mutex);
        --assistance->running;
        assistance->changed.NotifyAll();
      });
  assisted_ = Assisted{std::move(complete), work, number};
  return work;
}

void Executor::Assist(uint64_t number, absl::Time until) {
  Assisted assisted;
  {
    MutexLock lock(&mutex_);
    // Another thread, or the lane, has taken it up; and it may have ended, and
    // the next one begun, after the caller had looked.
    if (!assisted_.has_value() || assisted_->number != number) return;
    assisted = *std::exchange(assisted_, std::nullopt);
    ordered_.busy = true;
  }
  std::optional<absl::Status> status = assisted.complete(until);
  if (!status.has_value() && !TryQueue(&assisted)) {
    // Stopped, but perhaps not woken yet: until it has ended it may use the
    // caller's memory.
    status = Await(assisted.complete);
  }
  // Operations end one after the other, so the next one begins later.
  if (status.has_value()) {
    Finish({nullptr, std::move(assisted.work)}, *std::move(status));
  }
  MutexLock lock(&mutex_);
  ordered_.busy = false;
  if (!ordered_.tasks.empty()) NotifyLocked(&ordered_, 1);
}

bool Executor::TryQueue(Assisted* assisted) {
  MutexLock lock(&mutex_);
  if (!stopped_.ok()) return false;
  QueueLocked(std::move(*assisted));
  return true;
}

void Executor::QueueLocked(Assisted assisted) {
  Task task;
  task.work = std::move(assisted.work);
  task.operation = [complete = std::move(assisted.complete)] {
    return Await(complete);
  };
  ordered_.tasks.push_front(std::move(task));
}

WorkPtr Executor::RunInOrder(Operation operation) {
  MutexLock lock(&mutex_);
  return EnqueueLocked(&ordered_, 1, std::move(operation));
}

WorkPtr Executor::RunBeside(const Operation& post, Operation wait) {
  {
    MutexLock lock(&mutex_);
    if (!stopped_.ok()) return Work::Ended(stopped_);
    if (messages_ == kMaxMessages) {
      return Work::Ended(absl::ResourceExhaustedError(
          absl::StrCat(kMaxMessages,
                       " messages of this communicator wait for "
                       "their peers; let some end first")));
    }
    ++messages_;
  }
  const auto release = [this] {
    MutexLock lock(&mutex_);
    --messages_;
  };
  Task task{nullptr, std::make_shared<Work>()};
  if (absl::Status posted = post(); !posted.ok()) {
    release();
    Finish(task, std::move(posted));
    return task.work;
  }
  task.operation = [release, wait = std::move(wait)] {
    absl::Status status = wait();
    release();
    return status;
  };
  {
    MutexLock lock(&mutex_);
    if (stopped_.ok()) {
      return EnqueueLocked(&beside_, kMaxMessages, std::move(task.operation));
    }
  }
  // It has been woken, or is about to be.
  absl::Status status = task.operation();
  task.operation = nullptr;
  Finish(task, std::move(status));
  return task.work;
}

void Executor::Abort(absl::string_view reason) {
  aborted_.store(true);
  Stop(absl::AbortedError(reason), nullptr);
}

void Executor::Stop(absl::Status why, const std::function<void()>& cause) {
  std::vector<WorkPtr> dropped;
  bool first = false;
  {
    MutexLock lock(&mutex_);
    first = stopped_.ok();
    if (first) {
      stopped_ = why;
      for (const Task& task : ordered_.tasks) dropped.push_back(task.work);
      ordered_.tasks.clear();
      for (Lane* lane : {&ordered_, &beside_}) lane->changed.NotifyAll();
      if (assisted_.has_value()) dropped.push_back(assisted_->work);
      assisted_.reset();
    }
  }
  if (first) wake_(why);
  if (cause != nullptr) cause();
  for (const WorkPtr& work : dropped) work->Complete(why);
}

void Executor::Finish(const Task& task, absl::Status status) {
  if (IsHarmless(status)) {
    task.work->Complete(std::move(status));
  } else if (absl::IsAborted(status) || aborted_.load()) {
    // Aborted, peers go, and an operation may see that first.
    const absl::Status why = stopped();
    task.work->Complete(why.ok() ? status : why);
  } else {
    Stop(absl::AbortedError(
             absl::StrCat("an earlier operation failed: ", status.message())),
         [&] { task.work->Complete(status); });
  }
}

void Executor::Serve(Lane* lane) {
  for (;;) {
    Task task;
    {
      MutexLock lock(&mutex_);
      ++lane->idle;
      lane->changed.WaitForWork(&mutex_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return (!lane->tasks.empty() && !lane->busy) || !stopped_.ok();
      });
      --lane->idle;
      if (lane->tasks.empty()) return;
      task = std::move(lane->tasks.front());
      lane->tasks.pop_front();
      lane->busy = lane == &ordered_;
    }
    absl::Status status = task.operation();
    // What it holds, the caller's memory among it, is gone before its end.
    task.operation = nullptr;
    Finish(task, std::move(status));
    MutexLock lock(&mutex_);
    lane->busy = false;
  }
}

}  // namespace coxswain
