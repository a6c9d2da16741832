#ifndef COXSWAIN_CLIENT_COMM_HELD_HELD_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_HELD_HELD_COMMUNICATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/comm/back_end.h"
#include "client/comm/communicator.h"
#include "client/comm/work.h"
#include "client/device/tensor.h"

namespace coxswain {

// A slow network for tests: wraps a communicator, records what is launched and
// holds it until the test lets it through; can make one operation fail.
//
//   HeldCommunicator held(std::make_unique<LoopbackCommunicator>());
//   WorkPtr work = held.AllReduce(span);   // launched, held
//   held.launches();                       // {{"all-reduce", 4000, ...}}
//   held.Release(1);                       // now it runs
//
// A communicator split off is one of these, which holds what this one held
// then; cast it to reach it.
//
// Thread-safe like any Communicator; the test's methods from any thread.
class HeldCommunicator : public Communicator {
 public:
  struct Launch {
    std::string kind;  // "all-reduce", "broadcast", "barrier", "all-gather",
                       // "reduce-scatter", "all-to-all", "mean", "send",
                       // "receive"
    int64_t count = 0;
    DType dtype = DType::kFloat32;
  };

  // Holds everything at first.
  explicit HeldCommunicator(std::unique_ptr<Communicator> inner);
  // Ends what is held with ABORTED.
  ~HeldCommunicator() override;

  // Lets the next `operations` through, launched already or not.
  void Release(int64_t operations);
  // Lets everything through from now on.
  void Open();
  // When its turn comes, the `index`-th launch from 0 ends with `status` and
  // does not reach the wrapped communicator, which is aborted.
  void Fail(int64_t index, absl::Status status);

  std::vector<Launch> launches() const;
  // Returns whether there are `count` launches within `timeout`.
  bool AwaitLaunches(size_t count, absl::Duration timeout);
  int64_t held() const;

  absl::string_view backend() const override { return inner_->backend(); }
  bool has_mean() const override { return inner_->has_mean(); }
  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override;
  void Abort(absl::string_view reason) override;
  int64_t wire_bytes() const override { return inner_->wire_bytes(); }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoAgree(const CollectiveHeader& header) override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllToAll(Span input, Span output) override;
  WorkPtr DoAllReduceMean(std::vector<Span> parts, const Span& all) override;
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override;
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override;
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  struct Held {
    int64_t index;
    std::function<WorkPtr()> start;
    WorkPtr work;
  };

  WorkPtr Hold(absl::string_view kind, const Span& span,
               std::function<WorkPtr()> start);
  void Stop(absl::string_view reason);
  // Starts what may pass, in order, on one thread at a time and unlocked.
  void Drain();
  bool NextLocked(Held* held) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<Communicator> inner_;
  mutable Mutex mutex_;
  CondVar launched_;
  std::vector<Launch> launches_ ABSL_GUARDED_BY(mutex_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  int64_t permits_ ABSL_GUARDED_BY(mutex_) = 0;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  // Raised when it stops.
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  std::unique_ptr<SplitLink> link_;  // where this one was split off another
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_HELD_HELD_COMMUNICATOR_H_
