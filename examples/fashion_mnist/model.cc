#include "examples/fashion_mnist/model.h"

namespace coxswain::examples {

namespace nn = ::torch::nn;

Network::Network()
    : conv1_(nn::Conv2dOptions(1, 16, 3).padding(1)),
      conv2_(nn::Conv2dOptions(16, 32, 3).padding(1)),
      fc1_(32 * 7 * 7, 128),
      fc2_(128, Dataset::kClasses) {
  register_module("conv1", conv1_);
  register_module("conv2", conv2_);
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
}

::torch::Tensor Network::Forward(::torch::Tensor images) {
  auto x = ::torch::max_pool2d(::torch::relu(conv1_(images)), 2);
  x = ::torch::max_pool2d(::torch::relu(conv2_(x)), 2);
  x = ::torch::relu(fc1_(x.flatten(1)));
  return fc2_(x);
}

Batch MakeBatch(const Dataset& dataset, const std::vector<int64_t>& indices) {
  const auto count = static_cast<int64_t>(indices.size());
  Batch batch;
  batch.images = ::torch::empty({count, 1, Dataset::kSide, Dataset::kSide});
  batch.labels = ::torch::empty({count}, ::torch::kInt64);
  float* image = batch.images.data_ptr<float>();
  int64_t* label = batch.labels.data_ptr<int64_t>();
  for (const int64_t index : indices) {
    const uint8_t* pixels = &dataset.pixels[index * Dataset::kPixels];
    for (int64_t i = 0; i < Dataset::kPixels; ++i) {
      *image++ = static_cast<float>(pixels[i]) * (1.0f / 255.0f);
    }
    *label++ = dataset.labels[index];
  }
  return batch;
}

}  // namespace coxswain::examples
