#ifndef COXSWAIN_CLIENT_COMM_IN_PROCESS_IN_PROCESS_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_IN_PROCESS_IN_PROCESS_COMMUNICATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/cancel_signal.h"
#include "client/comm/communicator.h"
#include "client/comm/executor.h"
#include "client/comm/in_process/collective.h"
#include "client/comm/split_link.h"

namespace coxswain {

class InProcessWorld;

// One rank of an InProcessWorld, which makes it. See Communicator.
class InProcessCommunicator : public Communicator {
 public:
  InProcessCommunicator(int rank, int size,
                        std::shared_ptr<InProcessWorld> world);

  absl::string_view backend() const override { return "in_process"; }
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
  WorkPtr DoSend(Span span, int peer, uint32_t tag) override;
  WorkPtr DoReceive(Span span, int peer, uint32_t tag) override;
  absl::StatusOr<std::unique_ptr<Communicator>> DoSplit(
      const std::vector<int>& ranks) override;

 private:
  WorkPtr Start(CollectivePart part);
  WorkPtr Exchange(bool is_send, Span span, int peer, uint32_t tag);

  const std::shared_ptr<InProcessWorld> world_;
  uint64_t next_sequence_ = 0;
  // How often each list has been split off here.
  std::map<std::vector<int>, int64_t> splits_;
  // Raised when the executor stops.
  const std::shared_ptr<CancelSignal> ended_;
  // After all that its threads use.
  Executor executor_;
  std::unique_ptr<SplitLink> link_;  // where this one was split off another
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_IN_PROCESS_IN_PROCESS_COMMUNICATOR_H_
