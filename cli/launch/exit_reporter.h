#ifndef COXSWAIN_CLI_LAUNCH_EXIT_REPORTER_H_
#define COXSWAIN_CLI_LAUNCH_EXIT_REPORTER_H_

#include <deque>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/rpc/coordinator_stub.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Tells the coordinator of ended workers, in order, on a thread of its own, so
// that a coordinator that does not answer holds up nothing. While it is away,
// being started again perhaps, the first report is repeated; one that is
// refused is logged and given up: the worker's lease ends on its own.
// Thread-safe.
class ExitReporter {
 public:
  // How long one attempt at a report may take.
  static constexpr absl::Duration kTimeout = absl::Seconds(10);
  // Between attempts that fail at once.
  static constexpr absl::Duration kPause = absl::Milliseconds(100);

  explicit ExitReporter(std::shared_ptr<CoordinatorStub> stub);
  // Gives up what is not reported yet.
  ~ExitReporter();

  // Queues a report and returns at once.
  void Report(v1::ReportExitRequest exit);

  // Waits until all reports are done, at most for `timeout`. True if they are.
  bool Drain(absl::Duration timeout);

 private:
  void Run();
  void Deliver(const v1::ReportExitRequest& exit);

  const std::shared_ptr<CoordinatorStub> stub_;
  CancelSignal cancel_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::ReportExitRequest> queue_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_EXIT_REPORTER_H_
