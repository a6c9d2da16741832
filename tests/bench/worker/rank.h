#ifndef COXSWAIN_TESTS_BENCH_WORKER_RANK_H_
#define COXSWAIN_TESTS_BENCH_WORKER_RANK_H_

#include <torch/optim/adam.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/shard/sharded_optimizer.h"
#include "tests/bench/worker/networks.h"

namespace coxswain::bench {

struct RankOptions {
  int rank = 0;
  int size = 2;
  std::string store;  // a folder that the ranks share: see FileStore
  std::string address = "127.0.0.1";
  std::string backend = "tcp";
  std::string hook = "allreduce";
  // Gradients are views into the buckets, and zeroed between steps; otherwise
  // they are tensors of their own, and dropped.
  bool view = false;
  bool statistics = false;
  // Micro-batches of a window, for Window("accumulate").
  int accumulation_steps = 1;
  std::string trace;  // where to write one, if not empty
  // Of DistributedDataParallelOptions, for Train.
  int zero = 0;
};

// How long something took on this rank.
struct Timing {
  absl::Duration forward;  // before it, on its own; of Micro, within it
  absl::Duration wall;
  absl::Duration cpu;  // of all threads of the process
  // Of ReducerTotals, in between.
  absl::Duration in_hook;
  absl::Duration in_collectives;
  absl::Duration in_finish;
};

// One rank that takes steps of a network, on one thread of libtorch.
// All ranks make the same calls; each begins when all ranks have come to it.
class Rank {
 public:
  static absl::StatusOr<std::unique_ptr<Rank>> Create(
      const RankOptions& options, std::shared_ptr<Network> network);

  // Runs a backward pass that exchanges nothing.
  absl::StatusOr<Timing> Compute();
  // Runs a backward pass, and the exchange during it.
  absl::StatusOr<Timing> Step();
  // Runs a backward pass, and the exchange after it.
  absl::StatusOr<Timing> StepInTurn();
  // Exchanges the present gradients.
  absl::StatusOr<Timing> Exchange();
  // Runs the forward and the backward pass of a micro-batch that exchanges
  // nothing.
  absl::StatusOr<Timing> Micro();
  // Runs that many micro-batches, each with its forward; setting gradients to
  // zero is not timed. `kind` selects which of them exchange: "baseline"
  // (each), "no_sync" (the last, the others run in a NoSync scope),
  // "accumulate" (the last, by the accumulator). With `in_turn` exchanges
  // follow the backward pass instead of running during it.
  absl::StatusOr<Timing> Window(const std::string& kind, int micro_batches,
                                bool in_turn);
  // Returns the error of a backward pass in a NoSync scope whose forward ran
  // before it.
  absl::Status Misplaced();
  // Runs a whole step: forward, backward with exchange, Adam.
  absl::StatusOr<Timing> Train();
  // Sums up that many bytes, in pieces of 25 MiB, without a reducer.
  absl::StatusOr<Timing> AllReduce(int64_t bytes);

  // Closes buckets at this size from the next step on.
  absl::Status ChangeBuckets(const BucketPlanOptions& buckets);

  Communicator& communicator() { return *communicator_; }

 private:
  Rank() = default;
  absl::Status Connect(const RankOptions& options);
  absl::Status Barrier();
  absl::Status MakeOptimizer();
  void ZeroGradients();
  ::torch::Tensor Forward(Timing& timing);
  // Sums up the gradients of a forward pass of its own.
  absl::Status RunLocally();
  absl::Status RunInTurn();
  // Runs one micro-batch of Window.
  absl::Status RunMicro(const std::string& kind, bool last, bool in_turn);
  absl::Status ExchangeNow();
  absl::StatusOr<Timing> Time(Timing timing,
                              const std::function<absl::Status()>& action);

  RankOptions options_;
  std::shared_ptr<Network> network_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<torch::DistributedDataParallel> ddp_;
  std::unique_ptr<::torch::optim::Adam> adam_;        // of the first Train
  std::unique_ptr<torch::ShardedOptimizer> sharded_;  // with zero
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_RANK_H_
