#include "tests/bench/worker/networks.h"

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>

namespace coxswain::bench {
namespace {

using ::torch::Tensor;

class SumNetwork : public Network {
 public:
  explicit SumNetwork(const std::vector<std::vector<int64_t>>& shapes) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      weights_.push_back(register_parameter("p" + std::to_string(i),
                                            ::torch::randn(shapes[i])));
    }
  }

  Tensor Loss() override {
    constexpr double kConstant = 0.5;
    Tensor loss = ::torch::zeros({});
    for (const Tensor& weight : weights_) {
      loss = loss + (weight * kConstant).sum();
    }
    return loss;
  }

 private:
  std::vector<Tensor> weights_;
};

class Perceptron : public Network {
 public:
  Perceptron(int64_t layers, int64_t width, int64_t rows)
      : input_(::torch::randn({rows, width})) {
    for (int64_t i = 0; i < layers; ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i),
                                        ::torch::nn::Linear(width, width)));
    }
  }

  Tensor Loss() override {
    Tensor x = input_;
    for (auto& layer : layers_) x = ::torch::relu(layer(x));
    return x.mean();
  }

 private:
  const Tensor input_;
  std::vector<::torch::nn::Linear> layers_;
};

}  // namespace

std::shared_ptr<Network> MakeSumNetwork(
    const std::vector<std::vector<int64_t>>& shapes) {
  return std::make_shared<SumNetwork>(shapes);
}

std::shared_ptr<Network> MakePerceptron(int64_t layers, int64_t width,
                                        int64_t rows) {
  return std::make_shared<Perceptron>(layers, width, rows);
}

}  // namespace coxswain::bench
