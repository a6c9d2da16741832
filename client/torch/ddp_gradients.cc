// DistributedDataParallel's gradients: where each lies, how they come to the
// reducer in a backward pass, and what becomes of the averages.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/utils.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/torch/ddp_internal.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_tensors.h"
#include "client/torch/static_graph.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

// Returns the nodes that loss.backward() will visit. Those of a part that is
// computed again in the backward pass are not among them: they do not exist
// yet. Throws what libtorch throws.
std::unordered_set<const ::torch::autograd::Node*> NodesBehind(
    const Tensor& loss) {
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

// Returns whether a tensor is a view that alone holds the tensor it is a view
// of, as the gradients of a Linear are.
bool HidesItsBase(const Tensor& tensor) {
  return tensor.defined() && tensor.layout() == ::torch::kStrided &&
         tensor.is_view() && tensor._base().use_count() == 1;
}

}  // namespace

// ---- one parameter's gradient ----

void ParameterGradient::Point(const GradientPlace& place) {
  if (sharded_ && !as_view_) return;  // its bucket may have no memory
  const Tensor before = view_;
  // A view keeps its memory.
  view_ = ::torch::from_blob(
      place.view.data, parameter_.sizes(), [memory = place.memory](void*) {},
      ::torch::TensorOptions()
          .dtype(FromDType(place.view.dtype))
          .device(parameter_.device()));
  Tensor& gradient = parameter_.mutable_grad();
  if (before.defined() && gradient.defined() && gradient.is_alias_of(before)) {
    gradient = view_;
  }
}

bool ParameterGradient::InPlace(const Tensor& gradient) const {
  return gradient.is_alias_of(view_) && gradient.is_contiguous();
}

bool ParameterGradient::Alone() const {
  const Tensor& gradient = parameter_.grad();
  size_t owners = 1;
  // While its hook runs, libtorch holds what .grad was made of, beside .grad.
  if (incoming_ != nullptr) owners = HidesItsBase(*incoming_) ? 3 : 2;
  // One tensor may be the .grad of two parameters.
  return gradient.storage().use_count() <= owners && gradient.use_count() == 1;
}

void ParameterGradient::Separate() {
  const Tensor& gradient = parameter_.grad();
  if (as_view_ || !gradient.defined() || gradient.requires_grad() ||
      gradient.layout() != ::torch::kStrided || Alone()) {
    return;
  }
  const ::torch::NoGradGuard no_grad;
  parameter_.mutable_grad() = gradient.clone();
}

void ParameterGradient::Adopt() {
  const Tensor& gradient = parameter_.grad();
  if (!as_view_ || !gradient.defined() || InPlace(gradient)) return;
  // A pass that builds a graph of the gradients (second derivatives) needs the
  // tensor that is part of it; and what cannot be averaged is refused later.
  if (gradient.requires_grad() || gradient.layout() != ::torch::kStrided) {
    return;
  }
  CopyToPlace();
}

void ParameterGradient::CopyToPlace() {
  const ::torch::NoGradGuard no_grad;
  Tensor& gradient = parameter_.mutable_grad();
  if (!InPlace(gradient)) view_.copy_(gradient);
  if (as_view_) gradient = view_;
}

absl::Status ParameterGradient::Mark(Reducer& reducer, int index, bool used) {
  Reducer::MarkOptions mark;
  mark.used = used;
  const Tensor& gradient = parameter_.grad();
  if (gradient.layout() != ::torch::kStrided) {
    return absl::UnimplementedError(
        absl::StrCat("the gradient of \"",
                     reducer.parameters()[static_cast<size_t>(index)].name,
                     "\" is sparse; only dense ones can be averaged"));
  }
  if (sharded_ && !as_view_) return Give(reducer, index, used);
  if (!as_view_ && gradient.is_contiguous() &&
      gradient.scalar_type() == view_.scalar_type()) {
    mark.in_place = Alone();
    mark.copy_back = true;
    outside_ = gradient;
    return reducer.MarkReady(index, ElementsOf(outside_), mark);
  }
  // From the mark on, .grad may belong to the exchange thread.
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading a gradient", [&] {
    if (!used) SetAside();
    CopyToPlace();
  }));
  return reducer.MarkReady(index, mark);
}

absl::Status ParameterGradient::Give(Reducer& reducer, int index, bool used) {
  Tensor dense;
  COXSWAIN_RETURN_IF_ERROR(Guarded("reading a gradient", [&] {
    dense = parameter_.grad().detach().contiguous();
  }));
  Reducer::MarkOptions mark;
  mark.used = used;
  COXSWAIN_RETURN_IF_ERROR(reducer.MarkReady(index, ElementsOf(dense), mark));
  // The bucket has it; what it took is free for the gradients to come.
  parameter_.mutable_grad() = Tensor();
  return absl::OkStatus();
}

absl::Status ParameterGradient::MarkZeros(Reducer& reducer, int index) {
  return reducer.MarkZeros(index);
}

void ParameterGradient::SetAside() {
  if (as_view_ && !sharded_ && defined())
    aside_ = parameter_.grad().detach().clone();
}

void ParameterGradient::TakeAverage() {
  const ::torch::NoGradGuard no_grad;
  Tensor& gradient = parameter_.mutable_grad();
  const Tensor outside = std::exchange(outside_, Tensor());
  aside_ = Tensor();
  if (as_view_) {
    gradient = view_;
  } else if (outside.defined()) {
    gradient = outside;
  } else {
    // With the parameter's strides, as libtorch itself makes gradients.
    if (!gradient.defined()) gradient = ::torch::empty_like(parameter_);
    gradient.copy_(view_);
  }
}

void ParameterGradient::TakeClipped() {
  const ::torch::NoGradGuard no_grad;
  if (as_view_ || !defined()) return;
  Tensor gradient = parameter_.grad();
  gradient.copy_(view_);
}

void ParameterGradient::LeaveAsItWas() {
  const ::torch::NoGradGuard no_grad;
  outside_ = Tensor();
  if (!aside_.defined()) return;
  view_.copy_(std::exchange(aside_, Tensor()));
  parameter_.mutable_grad() = view_;
}

void ParameterGradient::Drop() { parameter_.mutable_grad() = Tensor(); }

void ParameterGradient::Release() {
  Tensor& gradient = parameter_.mutable_grad();
  if (gradient.defined() && view_.defined() && gradient.is_alias_of(view_)) {
    gradient = gradient.detach().clone();
  }
}

// ---- all of them ----

absl::Status DistributedDataParallel::BeginStep() {
  COXSWAIN_ASSIGN_OR_RETURN(const WindowSum sum, SumToExchange());
  COXSWAIN_RETURN_IF_ERROR(BeginReducerStep(sum));
  phase_ = Phase::kBegun;
  if (static_graph_ == nullptr) return absl::OkStatus();
  static_graph_->BeginPass();
  for (const int parameter : static_graph_->absent()) {
    COXSWAIN_RETURN_IF_ERROR(MarkOrZeros(parameter));
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::MarkUnreached(const Tensor& loss) {
  std::unordered_set<const ::torch::autograd::Node*> nodes;
  COXSWAIN_RETURN_IF_ERROR(
      Guarded("reading the graph", [&] { nodes = NodesBehind(loss); }));
  COXSWAIN_RETURN_IF_ERROR(BeginStep());
  for (const auto& parameter : parameters_) {
    if (nodes.count(parameter->accumulate_grad.get()) > 0) continue;
    COXSWAIN_RETURN_IF_ERROR(MarkOrZeros(parameter->index));
  }
  return absl::OkStatus();
}

void DistributedDataParallel::OnGradient(Parameter& parameter,
                                         const Tensor& incoming) {
  if (!status_.ok()) return;
  const absl::Cleanup leave = [&] { parameter.gradient.NoteHook(nullptr); };
  parameter.gradient.NoteHook(&incoming);
  parameter.used = parameter.used || parameter.gradient.defined();
  Keep(Guarded("separating gradients", [&] { parameter.gradient.Separate(); }));
  if (status_.ok() && window_.open()) {
    Keep(OnWindowGradient(parameter));
    return;
  }
  if (status_.ok() && !passes_.in_pass()) Keep(NoticePass());
  if (!status_.ok()) return;
  if (exchanges()) {
    Keep(passes_.CheckNotSpent());
    if (!status_.ok()) return;
    if (phase_ != Phase::kRunning) Keep(EnterPass());
    if (status_.ok()) Keep(Arrived(parameter));
  } else if (phase_ == Phase::kNone || phase_ == Phase::kAveraged) {
    Keep(Guarded("adding up gradients", [&] { parameter.gradient.Adopt(); }));
  } else {
    Keep(absl::FailedPreconditionError(
        "a backward pass that only sums up locally adds to gradients that are "
        "being exchanged; call Synchronize first"));
  }
}

absl::Status DistributedDataParallel::NoticePass() {
  passes_.BeginPass();
  return Guarded("watching the pass", [this] {
    ::torch::autograd::Engine::get_default_engine().queue_callback(
        [this] { passes_.EndPass(); });
  });
}

absl::Status DistributedDataParallel::EnterPass() {
  // kEnded: a backward pass inside this one was over.
  if (phase_ != Phase::kBegun && phase_ != Phase::kEnded) {
    COXSWAIN_RETURN_IF_ERROR(BeginStep());
  }
  phase_ = Phase::kRunning;
  return Guarded("watching the pass", [this] {
    ::torch::autograd::Engine::get_default_engine().queue_callback([this] {
      if (phase_ == Phase::kRunning) phase_ = Phase::kEnded;
    });
  });
}

absl::Status DistributedDataParallel::Arrived(Parameter& parameter) {
  if (static_graph_ != nullptr) {
    COXSWAIN_ASSIGN_OR_RETURN(const bool last,
                              static_graph_->Arrived(parameter.index));
    if (!last) return absl::OkStatus();
  }
  return Mark(parameter.index);
}

absl::Status DistributedDataParallel::Mark(int parameter) {
  Parameter& marked = *parameters_[static_cast<size_t>(parameter)];
  if (!marked.gradient.defined()) return absl::OkStatus();  // stays unmarked
  if (rescale() != 1) {
    COXSWAIN_RETURN_IF_ERROR(Guarded("rescaling a gradient", [&] {
      const ::torch::NoGradGuard no_grad;
      Tensor gradient = marked.gradient.parameter().grad();
      gradient.mul_(rescale());
    }));
  }
  const bool used = marked.used || !options_.reducer.find_unused_parameters;
  return marked.gradient.Mark(*reducer_, parameter, used);
}

absl::Status DistributedDataParallel::MarkOrZeros(int parameter) {
  Parameter& marked = *parameters_[static_cast<size_t>(parameter)];
  return marked.gradient.defined()
             ? Mark(parameter)
             : marked.gradient.MarkZeros(*reducer_, parameter);
}

absl::Status DistributedDataParallel::MarkRest(bool of_pass) {
  if (of_pass && static_graph_ != nullptr) {
    const bool first = !static_graph_->learned();
    COXSWAIN_RETURN_IF_ERROR(static_graph_->EndPass());
    // In the order of the pass, by which the reducer divides the buckets.
    for (const int parameter : static_graph_->order()) {
      if (first) COXSWAIN_RETURN_IF_ERROR(Mark(parameter));
    }
  }
  // What was summed up locally counts, even if this pass did not reach it.
  for (const int parameter : reducer_->Unmarked()) {
    COXSWAIN_RETURN_IF_ERROR(Mark(parameter));
  }
  return absl::OkStatus();
}

void DistributedDataParallel::FinishExchange(bool of_pass) {
  if (status_.ok()) Keep(MarkRest(of_pass));
  if (status_.ok()) Keep(reducer_->Finish());
  phase_ = Phase::kNone;
  if (!status_.ok()) return;
  phase_ = Phase::kAveraged;
  Keep(Guarded("writing the gradients", [this] { TakeAverages(); }));
}

void DistributedDataParallel::TakeAverages() {
  const bool empty = reducer_->report().empty;
  for (const auto& parameter : parameters_) {
    parameter->used = false;
    if (zero() > 0) {
      parameter->gradient.Drop();
    } else if (empty || reducer_->unused_everywhere(parameter->index)) {
      parameter->gradient.LeaveAsItWas();
    } else if (parameter->optimizer == nullptr) {
      parameter->gradient.TakeAverage();
    }
  }
}

void DistributedDataParallel::TakeClipped() {
  for (const auto& parameter : parameters_) {
    if (reducer_->unused_everywhere(parameter->index)) continue;
    parameter->gradient.TakeClipped();
  }
}

absl::Status DistributedDataParallel::StepOptimizers(const Bucket& bucket) {
  return Guarded("overlapped optimizer", [&] {
    // Each thread has a mode of its own.
    const ::torch::NoGradGuard no_grad;
    for (const GradientSlot& slot : bucket.gradients) {
      Parameter& parameter = *parameters_[static_cast<size_t>(slot.parameter)];
      parameter.gradient.TakeAverage();
      parameter.optimizer->step();
      Tensor gradient = parameter.gradient.parameter().grad();
      gradient.zero_();
    }
  });
}

}  // namespace coxswain::torch
