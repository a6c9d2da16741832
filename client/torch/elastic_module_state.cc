#include "client/torch/elastic_module_state.h"

#include <torch/utils.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"
#include "client/torch/state_bytes.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

// Returns whether each element has memory of its own: each dimension steps over
// all that those of smaller strides reach.
bool HasOwnElements(const Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return true;
    if (tensor.size(i) > 1) {
      dimensions.emplace_back(tensor.stride(i), tensor.size(i));
    }
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t last = 0;  // the farthest element of the dimensions before
  for (const auto& [stride, size] : dimensions) {
    if (stride <= last) return false;
    last += stride * (size - 1);
  }
  return true;
}

absl::Status CheckMemory(const std::string& name, const Tensor& tensor) {
  if (!tensor.defined()) return absl::OkStatus();
  if (tensor.is_cpu() && HasOwnElements(tensor)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", name, "\" cannot be copied between workers: ",
      tensor.is_cpu()
          ? "some of its elements share memory (sizes [" +
                absl::StrJoin(tensor.sizes(), ", ") + "], strides [" +
                absl::StrJoin(tensor.strides(), ", ") +
                "]); register a contiguous() copy of it"
          : "it is on a GPU, and changes of the members need the CPU's "
            "memory"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ElasticModuleState>> ElasticModuleState::Create(
    std::shared_ptr<::torch::nn::Module> module,
    ::torch::optim::Optimizer* optimizer, bool sharded) {
  for (const NamedTensor& named : TensorsOf(*module)) {
    COXSWAIN_RETURN_IF_ERROR(CheckMemory(named.name, named.tensor));
  }
  std::unique_ptr<ElasticModuleState> state(
      new ElasticModuleState(std::move(module), optimizer, sharded));
  state->Keep();
  return state;
}

void ElasticModuleState::Keep() {
  RecordState::Keep();
  dense_.clear();
  loose_dense_.clear();
  kept_buffers_.clear();
  for (const Tensor& buffer : module_->buffers()) {
    kept_buffers_.push_back(buffer.defined() ? buffer.detach().clone()
                                             : Tensor());
  }
}

void ElasticModuleState::WithKeptBuffers(const std::function<void()>& look) {
  shows_kept_buffers_ = true;
  const absl::Cleanup hide = [this] { shows_kept_buffers_ = false; };
  look();
}

void ElasticModuleState::Rollback() {
  const absl::Status status = Guarded("rolling back", [this] {
    module_->zero_grad();
    const bool undone = in_window();
    RecordState::Rollback();
    if (!undone) return;
    const ::torch::NoGradGuard no_grad;
    const std::vector<Tensor> buffers = module_->buffers();
    for (size_t i = 0; i < buffers.size() && i < kept_buffers_.size(); ++i) {
      if (buffers[i].defined()) buffers[i].copy_(kept_buffers_[i]);
    }
  });
  if (!status.ok()) LogError("rollback", {{"reason", status.message()}});
}

std::vector<Span> ElasticModuleState::SpansOf(
    const std::vector<Tensor>& tensors, std::vector<DenseCopy>* copies) {
  copies->clear();
  std::vector<Span> spans;
  for (const Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.is_contiguous()) {
      spans.push_back(BytesOf(tensor));
      continue;
    }
    copies->push_back({tensor, tensor.detach().contiguous()});
    spans.push_back(BytesOf(copies->back().dense));
  }
  return spans;
}

std::vector<Span> ElasticModuleState::Tensors() {
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : module_->parameters()) {
    if (sharded_ && parameter.requires_grad()) continue;
    parameters.push_back(parameter);
  }
  return SpansOf(parameters, &dense_);
}

std::vector<Span> ElasticModuleState::LooseTensors() {
  return SpansOf(shows_kept_buffers_ ? kept_buffers_ : module_->buffers(),
                 &loose_dense_);
}

absl::Status ElasticModuleState::TakeTensors() {
  return Guarded("taking copied tensors over", [this] {
    const ::torch::NoGradGuard no_grad;
    for (std::vector<DenseCopy>* copies : {&dense_, &loose_dense_}) {
      for (DenseCopy& copy : *copies) copy.tensor.copy_(copy.dense);
      copies->clear();
    }
  });
}

absl::StatusOr<std::string> ElasticModuleState::SaveOptimizer() {
  return torch::SaveOptimizer(optimizer_);
}

absl::Status ElasticModuleState::LoadOptimizer(absl::string_view bytes) {
  return torch::LoadOptimizer(bytes, &optimizer_);
}

absl::StatusOr<uint64_t> ElasticModuleState::Digest() {
  return DigestOptimizer(optimizer_);
}

}  // namespace coxswain::torch
