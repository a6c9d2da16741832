#include "client/torch/tensor/tensor_parallel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/work.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

}  // namespace

absl::StatusOr<TensorParallelPtr> TensorParallel::Create(
    const TensorParallelOptions& options) {
  if (options.communicator == nullptr) {
    return absl::InvalidArgumentError(
        "tensor parallelism needs the communicator of the ranks along tp: pass "
        "that of the session's GroupsOf(mesh).tp");
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the timeout of tensor parallelism is ",
        absl::FormatDuration(options.timeout), ": collectives need some time"));
  }
  return TensorParallelPtr(new TensorParallel(
      options, options.communicator->rank(), options.communicator->size()));
}

TensorParallelPtr TensorParallel::ForDescription(int size, bool sequence) {
  TensorParallelOptions options;
  options.sequence = sequence;
  return TensorParallelPtr(new TensorParallel(options, /*rank=*/0, size));
}

absl::Status TensorParallel::TakeError() {
  return std::exchange(error_, absl::OkStatus());
}

void TensorParallel::Fail(const absl::Status& error) {
  if (failed()) return;
  error_ = WithPrefix(
      absl::StrCat("tensor parallelism, rank ", rank(), " of ", size(), ": "),
      error);
  if (options_.communicator != nullptr) {
    options_.communicator->Abort(error_.message());
  }
}

Tensor TensorParallel::Zeros(at::IntArrayRef sizes,
                             const ::torch::TensorOptions& form) {
  return ::torch::zeros(sizes,
                        ::torch::TensorOptions()
                            .dtype(form.dtype())
                            .requires_grad(::torch::GradMode::is_enabled()));
}

bool TensorParallel::MayMove(const Tensor& tensor) {
  if (failed()) return false;
  if (options_.communicator == nullptr) {
    Fail(absl::FailedPreconditionError(
        "a collective of layers that were made for a description only: train "
        "with those that the job makes"));
    return false;
  }
  if (tensor.device().is_cpu() && (tensor.scalar_type() == ::torch::kFloat32 ||
                                   tensor.scalar_type() == ::torch::kFloat64)) {
    return true;
  }
  Fail(absl::InvalidArgumentError(absl::StrCat(
      "an activation is of ", c10::toString(tensor.scalar_type()), " on ",
      tensor.device().str(),
      ", and layers that are divided along tp compute with Float and Double on "
      "the CPU: convert it")));
  return false;
}

bool TensorParallel::Await(absl::string_view what, const WorkPtr& work,
                           std::vector<Tensor> memory) {
  const absl::Status status = WaitHolding(
      work, std::make_shared<const std::vector<Tensor>>(std::move(memory)),
      options_.timeout);
  if (!status.ok()) Fail(WithPrefix(absl::StrCat(what, ": "), status));
  return status.ok();
}

Tensor TensorParallel::AllReduce(Tensor own, ReduceOp op) {
  if (size() == 1 && !failed()) return own;
  if (!MayMove(own)) return ::torch::zeros_like(own);
  own = own.contiguous();
  if (Await("all-reduce", options_.communicator->AllReduce(ElementsOf(own), op),
            {own})) {
    return own;
  }
  return ::torch::zeros_like(own);
}

Tensor TensorParallel::AllGather(const Tensor& own) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), size());
  if (size() == 1 && !failed()) return own.unsqueeze(0);
  if (!MayMove(own)) return ::torch::zeros(sizes, own.options());
  const Tensor input = own.contiguous();
  Tensor output = ::torch::empty(sizes, own.options());
  if (Await("all-gather",
            options_.communicator->AllGather(ElementsOf(input),
                                             ElementsOf(output)),
            {input, output})) {
    return output;
  }
  return ::torch::zeros(sizes, own.options());
}

Tensor TensorParallel::ReduceScatter(const Tensor& slices) {
  if (size() == 1 && !failed()) return slices[0];
  if (!MayMove(slices)) return ::torch::zeros_like(slices[0]);
  const Tensor input = slices.contiguous();
  Tensor output = ::torch::empty_like(input[0]);
  if (Await("reduce-scatter",
            options_.communicator->ReduceScatter(ElementsOf(input),
                                                 ElementsOf(output)),
            {input, output})) {
    return output;
  }
  return ::torch::zeros_like(output);
}

absl::Status SumSequenceGradients(const std::vector<Tensor>& parameters,
                                  const TensorParallelPtr& parallel) {
  if (!parallel->sequence() || parallel->size() == 1 || parameters.empty()) {
    return parallel->TakeError();
  }
  const ::torch::NoGradGuard no_grad;
  std::vector<Tensor> parts;
  for (const Tensor& parameter : parameters) {
    if (parameter.scalar_type() != parameters[0].scalar_type()) {
      parallel->Fail(absl::InvalidArgumentError(
          "the parameters that all ranks have are of different types: sum "
          "their gradients in a call for each type"));
      return parallel->TakeError();
    }
    parts.push_back((parameter.grad().defined()
                         ? parameter.grad()
                         : ::torch::zeros_like(parameter))
                        .reshape({-1}));
  }
  const Tensor sums = parallel->AllReduce(::torch::cat(parts));
  COXSWAIN_RETURN_IF_ERROR(parallel->TakeError());
  int64_t begin = 0;
  for (const Tensor& parameter : parameters) {
    const Tensor sum =
        sums.slice(0, begin, begin + parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
    Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined()) {
      gradient.copy_(sum);
    } else {
      gradient = sum.clone();
    }
  }
  return absl::OkStatus();
}

}  // namespace coxswain::torch
