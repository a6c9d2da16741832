#include "schedule/memory/rank_model.h"

#include <cstddef>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::memory {
namespace {

int64_t PartOf(const Parameter& parameter, int tp, int index) {
  if (parameter.parts == 0) return parameter.elements;
  const int64_t parts =
      parameter.parts / tp + (index < parameter.parts % tp ? 1 : 0);
  return parameter.elements / parameter.parts * parts;
}

int64_t PartOf(const Bytes& bytes, int tp, bool sequence) {
  const auto divided = [tp](int64_t all) { return (all + tp - 1) / tp; };
  return bytes.whole + divided(bytes.tp) +
         (sequence ? divided(bytes.sequence) : bytes.sequence);
}

}  // namespace

int64_t RankLayer::elements() const {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0});
}

absl::Status CheckDivisible(const Model& model, int tp) {
  if (tp == 1) return absl::OkStatus();
  bool divided = false;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    for (const Parameter& parameter : model.layers[i].parameters) {
      if (parameter.parts == 0) continue;
      divided = true;
      if (parameter.parts >= tp) continue;
      const std::string& name = model.layers[i].name;
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", i, name.empty() ? "" : absl::StrCat(" (", name, ")"),
          " has a parameter of ", parameter.parts,
          " parts, which cannot be divided among ", tp,
          " ranks: make the mesh's tp at most ", parameter.parts));
    }
  }
  if (divided) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the mesh has tp=", tp,
      ", and no parameter of the model's description says how tp divides it: "
      "give those that are divided as {\"shape\": [512, 128], \"tp\": 0}, or "
      "leave tp out"));
}

std::vector<int> FirstsOf(const Model& model, int tp) {
  std::set<int> firsts = {0};
  for (const Layer& layer : model.layers) {
    for (const Parameter& parameter : layer.parameters) {
      // The first ranks have one part more.
      firsts.insert(static_cast<int>(parameter.parts % tp));
    }
  }
  return {firsts.begin(), firsts.end()};
}

RankModel RankModelOf(const Model& model, int tp, int index, bool sequence) {
  RankModel own;
  own.element_bytes = model.element_bytes;
  own.input = model.input;
  for (const Layer& layer : model.layers) {
    RankLayer part;
    for (const Parameter& parameter : layer.parameters) {
      part.tensors.push_back(PartOf(parameter, tp, index));
    }
    part.activations = PartOf(layer.activations, tp, sequence);
    part.output = PartOf(layer.output, tp, sequence);
    part.working = PartOf(layer.working, tp, sequence);
    own.layers.push_back(std::move(part));
  }
  return own;
}

}  // namespace coxswain::memory
