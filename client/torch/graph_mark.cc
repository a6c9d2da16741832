#include "client/torch/graph_mark.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <unordered_set>
#include <vector>

namespace coxswain::torch {
namespace {

using ::torch::autograd::Node;

// libtorch gives this number to what adds to a parameter's .grad.
constexpr uint64_t kParameter = std::numeric_limits<uint64_t>::max();

bool IsOlder(const Node& node, const GraphMark& mark) {
  return node.thread_id() == mark.thread && node.sequence_nr() < mark.sequence;
}

}  // namespace

GraphMark GraphMark::Now() {
  GraphMark mark;
  mark.sequence = at::sequence_number::peek();
  mark.thread = at::RecordFunction::currentThreadId();
  return mark;
}

bool ForwardRanBefore(const GraphMark& mark, const ::torch::Tensor& loss) {
  if (!loss.requires_grad()) return false;
  const auto root = ::torch::autograd::impl::gradient_edge(loss);
  if (root.function == nullptr || root.function->sequence_nr() == kParameter) {
    return false;
  }
  if (IsOlder(*root.function, mark)) return true;
  bool borders_on_older = false;
  std::unordered_set<const Node*> seen = {root.function.get()};
  std::vector<const Node*> next = {root.function.get()};
  while (!next.empty()) {
    const Node* const node = next.back();
    next.pop_back();
    for (const auto& edge : node->next_edges()) {
      const Node* const input = edge.function.get();
      if (input == nullptr) continue;
      if (input->sequence_nr() == kParameter) return false;
      // What an older node was made from is older still.
      if (IsOlder(*input, mark)) {
        borders_on_older = true;
      } else if (seen.insert(input).second) {
        next.push_back(input);
      }
    }
  }
  return borders_on_older;
}

}  // namespace coxswain::torch
