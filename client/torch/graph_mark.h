#ifndef COXSWAIN_CLIENT_TORCH_GRAPH_MARK_H_
#define COXSWAIN_CLIENT_TORCH_GRAPH_MARK_H_

#include <torch/types.h>

#include <cstdint>

namespace coxswain::torch {

// A moment in the making of graphs, as the thread counts that noted it.
struct GraphMark {
  uint64_t sequence = 0;
  uint64_t thread = 0;

  static GraphMark Now();
};

// Whether the forward that the loss comes from ran before the mark: what is
// younger than the mark uses no parameter, but something older. A part that is
// computed again in the backward pass counts by when it ran first. Looks at no
// more of the graph than it takes to find a parameter. Throws what libtorch
// throws.
bool ForwardRanBefore(const GraphMark& mark, const ::torch::Tensor& loss);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_GRAPH_MARK_H_
