#include "client/torch/autograd_graph.h"

#include <torch/csrc/autograd/variable.h>

#include <vector>

namespace coxswain::torch {

std::unordered_set<const ::torch::autograd::Node*> NodesBehind(
    const ::torch::Tensor& loss) {
  using ::torch::autograd::Node;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> next;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) next.push_back(node);
  };
  // A list of its own, since graphs are deeper than stacks.
  const auto root = ::torch::autograd::impl::gradient_edge(loss);
  visit(root.function.get());
  while (!next.empty()) {
    const Node* const node = next.back();
    next.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return seen;
}

}  // namespace coxswain::torch
