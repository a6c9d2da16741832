#ifndef COXSWAIN_CLIENT_COMM_LOOPBACK_LOOPBACK_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_LOOPBACK_LOOPBACK_COMMUNICATOR_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"

namespace coxswain {

// A group of one rank. Everything ends at once, on the calling thread; there
// is nobody to send to. Takes memory of the CPU only. See Communicator.
class LoopbackCommunicator : public Communicator {
 public:
  LoopbackCommunicator() : Communicator(0, 1) {}

  absl::string_view backend() const override { return "loopback"; }
  void Abort(absl::string_view reason) override;
  int64_t wire_bytes() const override { return 0; }

 protected:
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoBarrier() override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllToAll(Span input, Span output) override;

 private:
  WorkPtr Copy(const Span& input, const Span& output);

  Mutex mutex_;
  absl::Status stopped_ ABSL_GUARDED_BY(mutex_);
};

// INVALID_ARGUMENT unless options.size is 1 and options.rank 0.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectLoopback(
    const CommunicatorOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_LOOPBACK_LOOPBACK_COMMUNICATOR_H_
