#include "client/torch/shard/piece_forms.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/torch/module_tensors.h"

namespace coxswain::torch {
namespace {

using ::torch::Tensor;

std::optional<ElementType> ElementTypeOf(::torch::ScalarType type) {
  switch (type) {
    case ::torch::kFloat32:
      return ElementType::kFloat32;
    case ::torch::kFloat64:
      return ElementType::kFloat64;
    case ::torch::kFloat16:
      return ElementType::kFloat16;
    case ::torch::kBFloat16:
      return ElementType::kBFloat16;
    case ::torch::kInt8:
      return ElementType::kInt8;
    case ::torch::kInt32:
      return ElementType::kInt32;
    case ::torch::kInt64:
      return ElementType::kInt64;
    case ::torch::kUInt8:
      return ElementType::kUInt8;
    default:
      return std::nullopt;
  }
}

std::vector<int64_t> SizesOf(const Box& box) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < box.begin.size(); ++d) {
    sizes.push_back(box.end[d] - box.begin[d]);
  }
  return sizes;
}

}  // namespace

TensorPiece PieceOf(const std::string& name, const std::string& kind,
                    const Tensor& tensor, const ParameterBoxes& boxes) {
  const auto divided = boxes.find(name);
  ParameterBox box;
  if (divided != boxes.end()) {
    box = divided->second;
  } else {
    box.shape = tensor.sizes().vec();
    box.box = Box::Whole(box.shape);
  }
  const auto type = ElementTypeOf(tensor.scalar_type());
  if (type) return TensorPiece::Of(name, kind, *type, box);
  const auto bytes = static_cast<int64_t>(tensor.element_size());
  box.shape.push_back(bytes);
  box.box.begin.push_back(0);
  box.box.end.push_back(bytes);
  return TensorPiece::Of(name, kind, ElementType::kUInt8, box);
}

TensorPiece OfWhole(TensorPiece piece, const ParameterBoxes& boxes) {
  const auto divided = boxes.find(piece.parameter);
  if (divided == boxes.end()) return piece;
  piece.shape = divided->second.shape;
  piece.box = divided->second.box;
  return piece;
}

absl::Status CheckBoxes(const ::torch::nn::Module& module,
                        const ParameterBoxes& boxes) {
  size_t known = 0;
  for (const NamedTensor& named : TensorsOf(module)) {
    const auto divided = boxes.find(named.name);
    if (divided == boxes.end()) continue;
    ++known;
    const TensorPiece piece =
        PieceOf(named.name, "the box", named.tensor, boxes);
    COXSWAIN_RETURN_IF_ERROR(CheckPiece(piece));
    if (SizesOf(divided->second.box) == named.tensor.sizes().vec()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        Describe(piece),
        " is that of a tensor of other sizes: ", DescribeForm(named.tensor)));
  }
  if (known == boxes.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(boxes.size() - known,
                   " boxes of parameters that the module has not, nor as the "
                   "first name of a tensor"));
}

}  // namespace coxswain::torch
