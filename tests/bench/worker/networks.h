#ifndef COXSWAIN_TESTS_BENCH_WORKER_NETWORKS_H_
#define COXSWAIN_TESTS_BENCH_WORKER_NETWORKS_H_

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace coxswain::bench {

// What a benchmark trains: made of float32 parameters, with random values.
class Network : public ::torch::nn::Module {
 public:
  // Runs the forward pass, on input that is always the same, and returns the
  // loss.
  virtual ::torch::Tensor Loss() = 0;
};

// Returns a network with parameters of these shapes; its loss is the sum of
// their elements, each times a constant, so that the exchange is nearly all of
// a step.
std::shared_ptr<Network> MakeSumNetwork(
    const std::vector<std::vector<int64_t>>& shapes);

// Returns a network of `layers` square matrices with a bias and a ReLU each;
// the time of a backward pass grows with the rows of the input.
std::shared_ptr<Network> MakePerceptron(int64_t layers, int64_t width,
                                        int64_t rows);

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_WORKER_NETWORKS_H_
