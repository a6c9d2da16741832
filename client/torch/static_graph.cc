#include "client/torch/static_graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::torch {

StaticGraph::StaticGraph(std::vector<std::string> names)
    : names_(std::move(names)), counts_(names_.size()) {}

void StaticGraph::BeginPass() {
  for (Count& count : counts_) count.arrived = 0;
}

absl::StatusOr<bool> StaticGraph::Arrived(int parameter) {
  Count& count = counts_[static_cast<size_t>(parameter)];
  ++count.arrived;
  count.last = ++arrivals_;
  if (!learned_) return false;
  if (count.arrived > count.expected) {
    return Differs(static_cast<size_t>(parameter));
  }
  return count.arrived == count.expected;
}

absl::Status StaticGraph::EndPass() {
  if (!learned_) {
    Learn();
    return absl::OkStatus();
  }
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i].arrived != counts_[i].expected) return Differs(i);
  }
  return absl::OkStatus();
}

absl::Status StaticGraph::Differs(size_t parameter) const {
  const Count& count = counts_[parameter];
  return absl::FailedPreconditionError(absl::StrCat(
      "the graph is not static: parameter \"", names_[parameter], "\" got ",
      count.arrived, count.arrived > count.expected ? " or more" : "",
      " gradients in this pass and ", count.expected,
      " in the first one; set static_graph to false"));
}

void StaticGraph::Learn() {
  learned_ = true;
  for (size_t i = 0; i < counts_.size(); ++i) {
    counts_[i].expected = counts_[i].arrived;
    (counts_[i].expected > 0 ? order_ : absent_).push_back(static_cast<int>(i));
  }
  std::sort(order_.begin(), order_.end(), [this](int a, int b) {
    return counts_[static_cast<size_t>(a)].last <
           counts_[static_cast<size_t>(b)].last;
  });
}

}  // namespace coxswain::torch
