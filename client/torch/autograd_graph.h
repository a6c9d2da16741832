#ifndef COXSWAIN_CLIENT_TORCH_AUTOGRAD_GRAPH_H_
#define COXSWAIN_CLIENT_TORCH_AUTOGRAD_GRAPH_H_

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <unordered_set>

namespace coxswain::torch {

// The nodes that loss.backward() will visit. Those of a part that is computed
// again in the backward pass are not among them: nobody knows them yet. Throws
// what libtorch throws.
std::unordered_set<const ::torch::autograd::Node*> NodesBehind(
    const ::torch::Tensor& loss);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_AUTOGRAD_GRAPH_H_
