#ifndef COXSWAIN_CLI_LAUNCH_EXIT_REPORTER_H_
#define COXSWAIN_CLI_LAUNCH_EXIT_REPORTER_H_

#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retry.h"
#include "proto/rendezvous.pb.h"

namespace coxswain {

// Reports ended workers to the coordinator, in order, on a thread of its own,
// so that a coordinator that does not answer delays nothing. While it cannot be
// reached, the oldest report is repeated. A report that it refuses is logged
// and dropped: the worker's lease then ends by itself. Thread-safe.
class ExitReporter {
 public:
  // How long one attempt at a report may take.
  static constexpr absl::Duration kTimeout = absl::Seconds(10);

  // `stub` does not repeat calls by itself (ConnectWithoutRetries).
  explicit ExitReporter(std::shared_ptr<CoordinatorStub> stub,
                        const RetryPolicy& policy = {});
  // Drops what is not reported yet.
  ~ExitReporter();

  // Queues a report and returns at once.
  void Report(v1::ReportExitRequest exit);

  // Returns the coordinator's answer to the last report of this slot that it
  // has answered; empty if there is none.
  v1::ReportExitResponse AnswerOf(int slot);

  // Waits until all reports are done, at most for `timeout`. True if they are.
  bool Drain(absl::Duration timeout);

 private:
  void Run();
  void Deliver(const v1::ReportExitRequest& exit);

  const std::shared_ptr<CoordinatorStub> stub_;
  const RetryPolicy policy_;
  CancelSignal cancel_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<v1::ReportExitRequest> queue_ ABSL_GUARDED_BY(mutex_);
  // The last one of each slot.
  std::map<int, v1::ReportExitResponse> answers_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_EXIT_REPORTER_H_
