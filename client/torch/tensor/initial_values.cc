#include "client/torch/tensor/initial_values.h"

#include <torch/types.h>

#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/philox.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

struct ParameterPart {
  std::string name;
  Tensor tensor;
  ParameterBox box;
};

absl::Status CheckPart(const ParameterPart& part) {
  TensorPiece piece = TensorPiece::Whole(part.name, "value",
                                         ElementType::kFloat64, part.box.shape);
  piece.box = part.box.box;
  piece.end = 0;  // any box has no elements
  COXSWAIN_RETURN_IF_ERROR(CheckPiece(piece));
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < part.box.shape.size(); ++d) {
    sizes.push_back(part.box.box.end[d] - part.box.box.begin[d]);
  }
  if (part.tensor.sizes() != at::IntArrayRef(sizes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", part.name, "\" is ", DescribeForm(part.tensor),
        ", and its box in the whole one has [", absl::StrJoin(sizes, ", "),
        "]: pass BoxesOf(module)"));
  }
  if (!part.tensor.device().is_cpu() ||
      (part.tensor.scalar_type() != ::torch::kFloat32 &&
       part.tensor.scalar_type() != ::torch::kFloat64)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter \"", part.name, "\" is ", DescribeForm(part.tensor), " on ",
        part.tensor.device().str(),
        ": Float and Double on the CPU can be initialised by name"));
  }
  return absl::OkStatus();
}

Tensor ValuesOf(const ParameterPart& part, uint64_t seed,
                const InitialValues& initial) {
  if (initial.deviation == 0) {
    return ::torch::full(part.tensor.sizes(), initial.mean, ::torch::kFloat64);
  }
  DrawPlace place;
  place.seed = seed;
  place.name = StableHash(part.name);
  const PlaceRandom random(place);
  Tensor values = ::torch::empty(part.tensor.sizes(), ::torch::kFloat64);
  auto* element = values.data_ptr<double>();
  const Box& box = part.box.box;
  std::vector<int64_t> at = box.begin;  // the element's coordinates
  for (int64_t count = values.numel(); count > 0; --count) {
    int64_t index = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      index = index * part.box.shape[d] + at[d];
    }
    *element++ = initial.mean + initial.deviation *
                                    random.Normal(static_cast<uint64_t>(index));
    for (size_t d = at.size(); d-- > 0;) {
      if (++at[d] < box.end[d]) break;
      at[d] = box.begin[d];
    }
  }
  return values;
}

}  // namespace

InitialValues UsualInitialValues(const std::string& name,
                                 const std::vector<int64_t>& shape) {
  if (shape.size() < 2) return {absl::EndsWith(name, "bias") ? 0.0 : 1.0, 0};
  double inputs = 1;
  for (size_t d = 1; d < shape.size(); ++d) {
    inputs *= static_cast<double>(shape[d]);
  }
  return {0, inputs > 0 ? 1 / std::sqrt(inputs) : 0};
}

absl::Status InitialiseByName(::torch::nn::Module& module, uint64_t seed,
                              const ParameterBoxes& boxes,
                              const InitialRule& rule) {
  std::vector<ParameterPart> parts;
  std::set<const void*> seen;
  std::set<std::string> names;
  for (const auto& parameter : module.named_parameters()) {
    names.insert(parameter.key());
    if (!seen.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
    const auto found = boxes.find(parameter.key());
    ParameterPart part = {parameter.key(), parameter.value(), {}};
    if (found != boxes.end()) {
      part.box = found->second;
    } else {
      part.box.shape = parameter.value().sizes().vec();
      part.box.box = Box::Whole(part.box.shape);
    }
    COXSWAIN_RETURN_IF_ERROR(CheckPart(part));
    parts.push_back(std::move(part));
  }
  for (const auto& [name, box] : boxes) {
    if (names.count(name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("there is a box of \"", name,
                     "\", which is no parameter of the module: pass "
                     "BoxesOf(module)"));
  }
  const ::torch::NoGradGuard no_grad;
  for (ParameterPart& part : parts) {
    part.tensor.copy_(ValuesOf(part, seed, rule(part.name, part.box.shape)));
  }
  return absl::OkStatus();
}

}  // namespace coxswain::torch
