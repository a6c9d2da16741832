#include "client/torch/tensor/mesh_dropout.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/random.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

}  // namespace

absl::StatusOr<std::shared_ptr<MeshDropout>> MeshDropout::Create(
    const std::string& name, double probability,
    std::shared_ptr<const DropoutPlace> place, TensorParallelPtr parallel) {
  if (!(probability >= 0 && probability <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the dropout layer \"", name, "\" has the probability ",
                     probability, ", which is not from 0 to 1"));
  }
  if (name.empty() || place == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the dropout layer \"", name,
        "\" needs a name in the whole model, and the place of its rank: what "
        "it drops is a function of them"));
  }
  return std::shared_ptr<MeshDropout>(new MeshDropout(
      StableHash(name), probability, std::move(place), std::move(parallel)));
}

MeshDropout::MeshDropout(uint64_t name, double probability,
                         std::shared_ptr<const DropoutPlace> place,
                         TensorParallelPtr parallel)
    : Module("MeshDropout"),
      name_(name),
      probability_(probability),
      place_(std::move(place)),
      parallel_(std::move(parallel)) {}

Tensor MeshDropout::forward(const Tensor& input) {
  ActivationPart part;
  if (input.dim() > 0) part.whole = input.size(0);
  if (parallel_ != nullptr && parallel_->sequence() && input.dim() >= 2) {
    const int64_t own = input.size(-2);
    part = {input.dim() - 2, parallel_->rank() * own, parallel_->size() * own};
  }
  return DropPart(input, part);
}

Tensor MeshDropout::DropPart(const Tensor& input, const ActivationPart& part) {
  if (!is_training() || probability_ == 0) return input;
  if (probability_ == 1) return input * 0;
  return input * Mask(input, part);
}

Tensor MeshDropout::Mask(const Tensor& input,
                         const ActivationPart& part) const {
  DrawPlace place;
  place.purpose = DrawPlace::Purpose::kDropout;
  place.seed = place_->seed;
  place.step = place_->step;
  place.data_index = place_->data_index;
  place.micro_batch = place_->micro_batch;
  place.name = name_;
  const PlaceRandom random(place);
  // The activation as [outer, own, inner] of [outer, whole, inner].
  int64_t outer = 1, own = 1, whole = 1, inner = 1;
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (d < part.dimension) outer *= input.size(d);
    if (d > part.dimension) inner *= input.size(d);
  }
  if (input.dim() > 0) {
    own = input.size(part.dimension);
    whole = part.whole;
  }
  Tensor mask = ::torch::empty(input.sizes(), ::torch::kFloat64);
  auto* element = mask.data_ptr<double>();
  const double kept = 1 / (1 - probability_);
  for (int64_t o = 0; o < outer; ++o) {
    auto index = static_cast<uint64_t>((o * whole + part.begin) * inner);
    for (int64_t i = 0; i < own * inner; ++i) {
      *element++ = random.Uniform(index++) < probability_ ? 0 : kept;
    }
  }
  return mask.to(input.scalar_type());
}

}  // namespace coxswain::torch
