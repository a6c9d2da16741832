#ifndef COXSWAIN_CLIENT_COMM_NCCL_STREAM_WORKS_H_
#define COXSWAIN_CLIENT_COMM_NCCL_STREAM_WORKS_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/comm/work.h"
#include "client/device/runtime.h"

namespace coxswain {

// The Works of what is on a communicator's stream. A thread polls their events,
// without ever waiting for the device, and ends the Works in order; it also
// watches for deadlines and for errors that the library finds. Ensures that a
// communicator cannot be used after its first failure: then everything ends,
// once the stream no longer touches the callers' memory.
//
// Thread-safe. Must not be destroyed on its own thread, so not in a callback of
// a Work.
class StreamWorks {
 public:
  struct Links {
    // Called now and then; an error fails everything.
    std::function<absl::Status()> check;
    // Makes what waits for peers leave the stream. Called once, on the thread.
    std::function<void()> sever;
    // Called once, by the thread that ends everything, without a lock:
    // operations that are started later end with `why`. Must not block.
    std::function<void(const absl::Status& why)> on_end;
  };

  // Each operation may take `timeout` from when those before it have ended.
  StreamWorks(DeviceRuntime* runtime, DeviceStream stream,
              absl::Duration timeout, Clock* clock, Links links);
  // Closes.
  ~StreamWorks();

  // Returns the Work of all that is on the stream now. `finish` is called
  // before the Work ends with OK, and not otherwise. After everything has
  // ended, Add itself waits for what the stream still does, for up to 10
  // seconds.
  WorkPtr Add(std::string what, std::function<void()> finish = nullptr);
  // Returns the Work of an operation that could not be started: everything ends
  // with `why`.
  WorkPtr AddFailed(const absl::Status& why);

  // Returns OK, or what operations that are started end with.
  absl::Status ended() const;
  // Ends everything with ABORTED, soon. The first reason stays.
  void Abort(absl::string_view reason);
  // Ends everything with ABORTED, and the thread. Returns whether nothing was
  // in flight, in which case nothing was severed.
  bool Close(absl::string_view reason);

 private:
  struct Pending {
    WorkPtr work;
    DeviceEvent event = nullptr;  // null: it was never on the stream
    std::string what;
    std::function<void()> finish;
    bool late = false;  // came when all was to end already
  };

  // Returns whether nothing is in flight.
  bool idle() const;
  void Serve();
  // Ends the Works whose events have passed. Returns false once there is
  // nothing left to do.
  bool Look();
  bool EndFirst();
  // Returns how long to wait before the events are polled again.
  absl::Duration Pause() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns an error if the first one has waited for too long.
  absl::Status CheckDeadline() const;
  absl::Status HasFirstPassed(bool* passed);
  // Ends the first operation, or `culprit`, with `cause`.
  void Fail(const absl::Status& cause, WorkPtr culprit);
  // Returns whether this call was the first to end it.
  bool End(const absl::Status& ended, const absl::Status& cause,
           WorkPtr culprit);
  void EndAll();
  // Waits, for a bounded time, until the stream has run what is on it.
  void Drain();
  absl::Status AwaitStream(absl::Duration timeout);
  absl::StatusOr<DeviceEvent> Mark();

  DeviceRuntime* const runtime_;
  const DeviceStream stream_;
  const absl::Duration timeout_;
  Clock* const clock_;
  const Links links_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  std::vector<DeviceEvent> spare_ ABSL_GUARDED_BY(mutex_);
  // Since when the first one has been the first.
  absl::Time since_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);  // how it ends everything
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
  WorkPtr culprit_ ABSL_GUARDED_BY(mutex_);
  // The Works that end together are complete, and new ones are on their own.
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  // The thread's, up to its end.
  int64_t looks_ = 0;
  bool severed_ = false;
  std::thread thread_;
};

// A graph with a communicator's collectives. Made by RecordedGraphs, and ended
// by it or by its last owner. Thread-safe.
class RecordedGraph {
 public:
  RecordedGraph(DeviceRuntime* runtime, DeviceGraph graph)
      : runtime_(runtime), graph_(graph) {}
  ~RecordedGraph() { Destroy(); }

  // Fails with ABORTED once it was destroyed, and with errors of the device.
  absl::Status Launch(DeviceStream stream);
  void Destroy();

 private:
  DeviceRuntime* const runtime_;
  Mutex mutex_;
  DeviceGraph graph_ ABSL_GUARDED_BY(mutex_);
};

// The graphs of one communicator. NCCL cannot free a communicator that is in a
// graph, so graphs end with their communicator although their sequences may
// still be held. Sequences hold this object, by which the communicator
// recognises its own. Thread-safe.
class RecordedGraphs {
 public:
  explicit RecordedGraphs(DeviceRuntime* runtime) : runtime_(runtime) {}

  // Takes ownership of `graph`. Destroys it at once if DestroyAll was called.
  std::shared_ptr<RecordedGraph> Add(DeviceGraph graph);
  // Destroys all graphs, also those that are added later.
  void DestroyAll();

 private:
  DeviceRuntime* const runtime_;
  Mutex mutex_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<RecordedGraph>> graphs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_STREAM_WORKS_H_
