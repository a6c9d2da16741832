#ifndef COXSWAIN_CLIENT_COMM_HOST_COMMUNICATOR_H_
#define COXSWAIN_CLIENT_COMM_HOST_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "client/comm/collective_header.h"
#include "client/comm/communicator.h"
#include "client/comm/memory_runs.h"
#include "client/device/tensor.h"

namespace coxswain {

// A collective between memories of the CPU.
struct HostOperation {
  CollectiveHeader header;  // but for its sequence number
  Span input;               // without memory: nothing moves
  Span output;              // as input where a collective is in place
  // Of a mean: where its elements are, if not in one run, of which input and
  // output have the first, and the count of all.
  std::shared_ptr<const Runs> runs = nullptr;
};

// What back ends of the CPU have in common whose collectives, means among them,
// are one operation each. See Communicator.
class HostCommunicator : public Communicator {
 public:
  using Communicator::Communicator;

  bool has_mean() const override { return true; }

 protected:
  // Begins an operation, which is to come after those that were begun before.
  virtual WorkPtr Start(const HostOperation& operation) = 0;

  absl::Status CheckPlace(const Span& span) const override;
  WorkPtr DoAllReduce(Span span, ReduceOp op) override;
  WorkPtr DoBroadcast(Span span, int root) override;
  WorkPtr DoAgree(const CollectiveHeader& header) override;
  WorkPtr DoAllGather(Span input, Span output) override;
  WorkPtr DoReduceScatter(Span input, Span output, ReduceOp op) override;
  WorkPtr DoAllReduceMean(std::vector<Span> parts, const Span& all) override;
  WorkPtr DoAllToAll(Span input, Span output) override;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_HOST_COMMUNICATOR_H_
