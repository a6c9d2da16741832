#include "client/torch/declared_passes.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coxswain::torch {
namespace {

using ::torch::autograd::Node;

// libtorch gives this number to what adds to a parameter's .grad.
constexpr uint64_t kParameter = std::numeric_limits<uint64_t>::max();

bool IsOlder(const Node& node, const GraphMark& mark) {
  return node.thread_id() == mark.thread && node.sequence_nr() < mark.sequence;
}

// Of a reason that all ranks receive.
constexpr size_t kMaxReason = 256;

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

absl::Status DeclaredPasses::CheckDeclare() const {
  if (pass_due_) {
    return absl::FailedPreconditionError(
        "a micro-batch begins, but the one before it has not run its backward: "
        "call Backward for each Accumulate, FailMicroBatch where its loss "
        "cannot be computed, or give the window up by DropWindow");
  }
  if (exchange_due_) {
    return absl::FailedPreconditionError(
        "a micro-batch begins, but the one before it, which exchanges "
        "gradients, did not: run its backward outside NoSync, then "
        "Synchronize, or give the window up by DropWindow");
  }
  return absl::OkStatus();
}

void DeclaredPasses::Declare(const MicroBatch& micro) {
  micro_ = micro;
  since_ = GraphMark::Now();
  declared_ = true;
  pass_due_ = true;
  exchange_due_ = micro.exchange;
  in_window_ = !micro.sync;
  spent_ = false;
  in_pass_ = false;
}

void DeclaredPasses::DeclareWindow(const MicroBatch& last) {
  Declare(last);
  pass_due_ = false;
}

void DeclaredPasses::DeclareTail() {
  micro_.sync = micro_.exchange = true;
  exchange_due_ = true;
  in_window_ = false;
}

void DeclaredPasses::BeginPass() {
  in_pass_ = true;
  pass_due_ = false;
  ++passes_;
}

void DeclaredPasses::Fail(const absl::Status& why) {
  if (!failure_.empty()) return;
  failure_ = std::string(why.message()).substr(0, kMaxReason);
  if (failure_.empty()) failure_ = absl::StatusCodeToString(why.code());
}

void DeclaredPasses::EndExchange() {
  // Of a declared micro-batch; passes that are not declared all exchange.
  if (std::exchange(exchange_due_, false)) spent_ = true;
  pass_due_ = false;
  passes_ = 0;
  failure_.clear();
}

void DeclaredPasses::DropWindow() {
  EndExchange();
  in_window_ = false;
}

absl::Status DeclaredPasses::CheckNotSpent() const {
  if (!spent_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a backward pass exchanges gradients, but the micro-batch that was "
      "declared last has exchanged its own: call Accumulate before each "
      "forward, and where one has several losses add them up, or run all but "
      "the last one's backward in a NoSync scope");
}

}  // namespace coxswain::torch
