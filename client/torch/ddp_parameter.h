#ifndef COXSWAIN_CLIENT_TORCH_DDP_PARAMETER_H_
#define COXSWAIN_CLIENT_TORCH_DDP_PARAMETER_H_

#include <torch/csrc/autograd/function.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>

#include "client/torch/distributed_data_parallel.h"
#include "client/torch/parameter_gradient.h"

namespace coxswain::torch {

// What DistributedDataParallel's sources know of a trainable parameter.
struct DistributedDataParallel::Parameter {
  Parameter(const ::torch::Tensor& tensor, bool as_view)
      : gradient(tensor, as_view) {}

  int index = 0;
  ParameterGradient gradient;
  // A pass since the last exchange gave it a gradient.
  bool used = false;
  // sync_each_batch: the sum of the window's averages, while .grad is that of
  // the micro-batch under way.
  ::torch::Tensor averages;
  // Kept alive, since libtorch only holds it weakly between passes.
  std::shared_ptr<::torch::autograd::Node> accumulate_grad;
  uintptr_t hook_key = 0;
  // Null without the option.
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
};

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_DDP_PARAMETER_H_
