#ifndef COXSWAIN_TESTS_BENCH_WORKER_TENSOR_PAIR_H_
#define COXSWAIN_TESTS_BENCH_WORKER_TENSOR_PAIR_H_

#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/torch/tensor/tensor_parallel.h"

namespace coxswain::bench {

struct TensorPairSizes {
  int64_t width = 0;
  int64_t inner = 0;  // of all ranks
  int64_t rows = 0;
};

struct TensorPairTimes {
  double pair = 0;   // seconds of a forward and a backward pass
  double local = 0;  // the same without collectives
};

// A column-parallel linear layer and a row-parallel one behind it; and beside
// them two ordinary layers, of the sizes of a rank's parts. float32.
class TensorPair {
 public:
  // Fails unless results and gradients are those of undivided layers.
  static absl::StatusOr<std::unique_ptr<TensorPair>> Create(
      Communicator* communicator, const TensorPairSizes& sizes);

  // Returns medians over `count` passes of each.
  absl::StatusOr<TensorPairTimes> Times(int64_t count);

 private:
  struct Layers;
  struct Divided;
  struct Ordinary;

  TensorPair() = default;
  absl::Status Check();
  absl::StatusOr<double> Time(Layers& layers, int64_t count);

  TensorPairSizes sizes_;
  Communicator* communicator_ = nullptr;
  torch::TensorParallelPtr parallel_;
  std::shared_ptr<Divided> pair_;
  std::shared_ptr<Ordinary> local_;
  ::torch::Tensor input_;
  ::torch::Tensor gradient_;  // of the result
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_TENSOR_PAIR_H_
