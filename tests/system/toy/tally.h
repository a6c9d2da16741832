#ifndef COXSWAIN_TESTS_SYSTEM_TOY_TALLY_H_
#define COXSWAIN_TESTS_SYSTEM_TOY_TALLY_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <set>

#include "absl/status/status.h"
#include "client/torch/elastic/elastic_training.h"

namespace coxswain::torch {

// A model whose one parameter counts how often training has used each row of
// the data, with plain gradient descent of rate 1: the parameters alone show a
// row that was lost, or used twice.
class Tally : public ::torch::nn::Module {
 public:
  explicit Tally(int64_t rows);

  // Returns a loss whose gradient is `weight` at the row.
  ::torch::Tensor Loss(int64_t row, double weight);
  // Fails with DATA_LOSS, naming the first row below `rows` that was not used
  // exactly once, one of `dropped` that was used, or one from `rows` on that
  // was.
  absl::Status CheckUsedOnce(int64_t rows,
                             const std::set<int64_t>& dropped) const;

 private:
  ::torch::Tensor counts_;
};

struct TallyTraining {
  int64_t steps = 20;
  // Micro-batches of each rank in an epoch; 0: there are no epochs.
  int64_t epoch = 0;
  // A micro-batch of the stream "peek" is begun in every so many-th step, so
  // that its windows are under way most of the time. 0: none.
  int64_t peek_every = 0;
  // Called before each backward pass, and before each optimizer step. May be
  // null.
  std::function<absl::Status(ElasticTraining&)> before_backward;
  std::function<absl::Status(ElasticTraining&)> before_step;
};

struct TallyResult {
  int64_t step = 0;
  int64_t rows = 0;
  int64_t peeks = 0;  // windows of the stream "peek"
  std::set<int64_t> dropped;
};

// The body of an ElasticTraining that tallies: each micro-batch of each rank
// uses one row, the next that no other has used. Fails with DATA_LOSS if the
// position of the stream "peek" differs from the program's own count of its
// windows.
absl::Status TrainTally(const TallyTraining& training, Tally& tally,
                        ElasticTraining& t, TallyResult* result);

}  // namespace coxswain::torch

#endif  // COXSWAIN_TESTS_SYSTEM_TOY_TALLY_H_
