#ifndef COXSWAIN_TESTS_INTEGRATION_POINTER_TRAINING_H_
#define COXSWAIN_TESTS_INTEGRATION_POINTER_TRAINING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/session/session_options.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"
#include "train/train.h"

// One call that trains without libtorch, against a real coordinator in the same
// process, each worker a thread.

namespace coxswain::pointer_training {

// A model with an optimizer that has momentum, whose gradients depend on its
// values and on the micro-batch that they are of.
struct Model {
  std::vector<double> value = std::vector<double>(12, 0.25);
  std::vector<double> gradient = std::vector<double>(12);
  std::vector<double> momentum = std::vector<double>(12);

  double Backward(int64_t batch);
  absl::Status Step();

  // A step with the mean of these micro-batches, as a single process takes it.
  void PlainStep(const std::vector<int64_t>& batches);
  // Steps that all ranks take together over this many micro-batches each.
  void PlainSteps(int64_t* next, int64_t steps, int64_t batches);

  std::vector<TrainedParameter> parameters();
  TrainedOptimizer optimizer();
};

// Returns a model after so many steps of a single process.
Model Plain(int64_t steps, int64_t batches);

void ExpectClose(const Model& a, const Model& b);

// What one worker came to.
struct Ended {
  absl::Status status;
  Model model;
  int64_t step = 0;
  int64_t counter = 0;
};

class PointerTrainTest : public ::testing::Test {
 protected:
  using Body = std::function<absl::Status(Training&, Model&)>;

  PointerTrainTest();

  SessionOptions SessionOf(int slot, int ranks) const;

  // Trains on all ranks to the end.
  std::vector<Ended> Run(int ranks, const TrainOptions& options,
                         const Body& body) const;
  // Trains on one of them.
  void RunOne(int slot, int ranks, const TrainOptions& options,
              const Body& body, Ended* ended) const;

  static TrainOptions Options();

  // Trains until `steps` are done, on micro-batches of each rank's own.
  static Body Until(int64_t steps);

  std::map<std::string, std::string> plan_overrides_;
  int min_world_size_ = 0;  // 0: all ranks
  std::unique_ptr<server::Coordinator> coordinator_;
};

}  // namespace coxswain::pointer_training

#endif  // COXSWAIN_TESTS_INTEGRATION_POINTER_TRAINING_H_
