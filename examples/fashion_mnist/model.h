#ifndef COXSWAIN_EXAMPLES_FASHION_MNIST_MODEL_H_
#define COXSWAIN_EXAMPLES_FASHION_MNIST_MODEL_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "examples/fashion_mnist/dataset.h"

namespace coxswain::examples {

// A small convolutional network: two convolutions with pooling, two linear
// layers. 206,922 parameters, most of them in one 128 x 1568 matrix.
class Network : public ::torch::nn::Module {
 public:
  Network();
  // `images`: N x 1 x 28 x 28 in [0, 1]. Returns N x 10 logits.
  ::torch::Tensor Forward(::torch::Tensor images);

 private:
  ::torch::nn::Conv2d conv1_;
  ::torch::nn::Conv2d conv2_;
  ::torch::nn::Linear fc1_;
  ::torch::nn::Linear fc2_;
};

// Returns the chosen samples as tensors that own their memory.
struct Batch {
  ::torch::Tensor images;
  ::torch::Tensor labels;
};
Batch MakeBatch(const Dataset& dataset, const std::vector<int64_t>& indices);

}  // namespace coxswain::examples

#endif  // COXSWAIN_EXAMPLES_FASHION_MNIST_MODEL_H_
