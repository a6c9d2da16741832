#ifndef COXSWAIN_CLIENT_COMM_EXECUTOR_H_
#define COXSWAIN_CLIENT_COMM_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "client/comm/work.h"

namespace coxswain {

// Runs the blocking operations of one CPU communicator: collectives one after
// the other on a thread of their own, messages beside them. Ensures that a
// communicator cannot be used after its first failure.
//
// An operation is a function that blocks and returns how it ended:
//   OK, INVALID_ARGUMENT, UNIMPLEMENTED  the executor continues
//   ABORTED        it was woken because the executor stopped; its Work ends
//                  with the reason of that
//   anything else  stops the executor: all operations that wait or are added
//                  later end with ABORTED and this reason
// An operation in order that has not begun when the executor stops never
// begins.
//
// Thread-safe. Must not be destroyed on one of its own threads, so not in a
// callback of a Work.
class Executor {
 public:
  using Operation = std::function<absl::Status()>;

  // `wake` is called once, by the thread that stops the executor and without a
  // lock, with the status that waiting operations end with; it must make
  // running operations return soon, and must not block.
  explicit Executor(std::function<void(const absl::Status& why)> wake);
  // Stops, and joins the threads.
  ~Executor();

  // Runs `operation` after all earlier ones of this kind.
  WorkPtr RunInOrder(Operation operation);

  // An operation that only waits and then ends quickly: returns how it ended,
  // or nullopt if it could not end by that time (of Clock::Real()).
  using Completion = std::function<std::optional<absl::Status>(absl::Time)>;

  // If no operation of RunInOrder is waiting or running: runs `begin`, which
  // must not block, on this thread and under a lock, and then `complete` on the
  // first thread that waits for the Work, or on the executor's own once another
  // operation is added or a caller uses OnDone or Done. Returns nullptr if
  // there are operations before it; then nothing has been run.
  WorkPtr TryRunAssisted(const std::function<void()>& begin,
                         Completion complete);

  // Runs `post` at once on this thread, and if that succeeds `wait` on a thread
  // that no other operation keeps busy. `wait` is run to its end also after a
  // stop: only it knows when the caller's memory is no longer used, and the
  // Work does not end before. Fails with RESOURCE_EXHAUSTED while kMaxMessages
  // of them wait; then nothing is posted.
  WorkPtr RunBeside(const Operation& post, Operation wait);
  static constexpr int kMaxMessages = 256;

  // Returns the Work of an operation that has nothing to do.
  WorkPtr Nothing();

  // Ends everything with ABORTED. The first reason stays.
  void Abort(absl::string_view reason);

 private:
  struct Task {
    Operation operation;
    WorkPtr work;
  };
  struct Lane {
    std::deque<Task> tasks;
    std::vector<std::thread> threads;
    size_t idle = 0;
    bool busy = false;  // with an operation; of the ordered lane
    CondVar changed;
  };
  // Leads from Works to this executor, which they may outlive.
  struct Assistance {
    Mutex mutex;
    CondVar changed;
    Executor* executor ABSL_GUARDED_BY(mutex) = nullptr;
    int running ABSL_GUARDED_BY(mutex) = 0;
  };
  struct Assisted {
    Completion complete;
    WorkPtr work;
    uint64_t number = 0;
  };

  // Appends a task, and starts a thread for it if all are busy, at most
  // `max_threads` of them.
  WorkPtr EnqueueLocked(Lane* lane, size_t max_threads, Operation operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotifyLocked(Lane* lane, size_t max_threads)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve(Lane* lane);
  // Completes the assisted operation of this number, or hands it to the lane.
  // Does nothing for another number.
  void Assist(uint64_t number, absl::Time until);
  // Hands it to the lane; returns false once the executor has stopped.
  bool TryQueue(Assisted* assisted);
  // Puts it before all tasks of the lane.
  void QueueLocked(Assisted assisted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const Task& task, absl::Status status);
  // Stops with this reason unless stopped already; then completes first
  // `cause`, if any, and then all waiting operations.
  void Stop(absl::Status why, const std::function<void()>& cause);
  absl::Status stopped() const;

  const std::function<void(const absl::Status&)> wake_;
  const std::shared_ptr<Assistance> assistance_;
  mutable Mutex mutex_;
  std::atomic<bool> aborted_{false};  // the first reason may be another's
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  Lane ordered_ ABSL_GUARDED_BY(mutex_);
  Lane beside_ ABSL_GUARDED_BY(mutex_);
  // Begun, and not taken up by any thread yet.
  std::optional<Assisted> assisted_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_assisted_ ABSL_GUARDED_BY(mutex_) = 0;
  int messages_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_EXECUTOR_H_
