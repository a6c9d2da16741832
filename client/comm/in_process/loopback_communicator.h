#ifndef COXSWAIN_CLIENT_COMM_IN_PROCESS_LOOPBACK_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_IN_PROCESS_LOOPBACK_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/comm/back_end.h"
#include "client/comm/communicator.h"

namespace coxswain {

// A group of one rank. Everything ends at once, on the calling thread; there is
// no peer to send to. Takes memory of the CPU only. See Communicator.
class LoopbackCommunicator : public Communicator {
 public:
  LoopbackCommunicator() : Communicator(0, 1) {}
  ~LoopbackCommunicator() override;

  absl::string_view backend() const override { return "loopback"; }
  void Abort(absl::string_view reason) override;
  int64_t wire_bytes() const override { return 0; }

 protected:
  absl::Status CheckPlace(const Span& span) const override;
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoAgree(const CollectiveHeader& header) override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllToAll(Span input, Span output) override;
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  WorkPtr Copy(const Span& input, const Span& output);
  void Stop(absl::string_view reason);

  Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
  // Raised when it stops.
  const std::shared_ptr<CancelSignal> ended_ = std::make_shared<CancelSignal>();
  std::unique_ptr<SplitLink> link_;
};

// Fails with INVALID_ARGUMENT unless options.size is 1 and options.rank 0.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectLoopback(
    const CommunicatorOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_IN_PROCESS_LOOPBACK_COMMUNICATOR_H_
