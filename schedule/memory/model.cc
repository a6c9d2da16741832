#include "schedule/memory/model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace coxswain::memory {
namespace {

using Json = nlohmann::json;

absl::Status Wrong(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the model's description: ", where, ": ", what));
}

absl::Status CheckFields(const Json& map, const std::string& where,
                         const std::vector<std::string>& known) {
  if (!map.is_object()) return Wrong(where, "a map of fields is expected");
  for (const auto& [name, value] : map.items()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return Wrong(where, absl::StrCat("there is no field \"", name, "\"",
                                     DidYouMean(name, known)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SizeOf(const Json& value, const std::string& where,
                               int64_t least, int64_t most) {
  if (value.is_number_unsigned()) {
    const auto size = value.get<uint64_t>();
    if (size >= static_cast<uint64_t>(least) &&
        size <= static_cast<uint64_t>(most)) {
      return static_cast<int64_t>(size);
    }
  }
  return Wrong(where, absl::StrCat("a whole number from ", least, " to ", most,
                                   " is expected"));
}

// Returns what a field has, or `missing` where there is none; below `least`:
// there must be one.
absl::StatusOr<int64_t> Field(const Json& map, const std::string& where,
                              const std::string& name, int64_t least,
                              int64_t most, int64_t missing) {
  const auto found = map.find(name);
  const std::string field = absl::StrCat(where, ".", name);
  if (found != map.end()) return SizeOf(*found, field, least, most);
  if (missing >= least) return missing;
  return Wrong(field, "is required");
}

absl::StatusOr<int64_t> ElementBytes(const Json& root) {
  const auto found = root.find("dtype");
  if (found == root.end()) return 4;
  const std::map<std::string, int64_t> sizes = {
      {"float64", 8}, {"float32", 4}, {"float16", 2}, {"bfloat16", 2}};
  const auto size =
      sizes.find(found->is_string() ? found->get<std::string>() : "");
  if (size != sizes.end()) return size->second;
  return Wrong("dtype", "float32, float64, float16 or bfloat16 is expected");
}

absl::StatusOr<std::vector<int64_t>> TensorsOf(const Json& layer,
                                               const std::string& where) {
  std::vector<int64_t> tensors;
  const auto found = layer.find("parameters");
  if (found == layer.end()) return tensors;
  const std::string field = absl::StrCat(where, ".parameters");
  if (!found->is_array()) {
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t elements,
                              SizeOf(*found, field, 0, kMaxSize));
    if (elements > 0) tensors.push_back(elements);
    return tensors;
  }
  for (const Json& one : *found) {
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t elements,
                              SizeOf(one, field, 1, kMaxSize));
    tensors.push_back(elements);
  }
  return tensors;
}

absl::Status AddLayers(const Json& json, const std::string& where,
                       std::vector<Layer>* layers) {
  COXSWAIN_RETURN_IF_ERROR(CheckFields(
      json, where,
      {"name", "parameters", "activations", "output", "working", "repeat"}));
  Layer layer;
  const auto name = json.find("name");
  if (name != json.end()) {
    if (!name->is_string()) return Wrong(where + ".name", "is no text");
    layer.name = name->get<std::string>();
  }
  COXSWAIN_ASSIGN_OR_RETURN(layer.tensors, TensorsOf(json, where));
  for (const auto& [field, size] :
       {std::pair("activations", &layer.activations),
        std::pair("output", &layer.output),
        std::pair("working", &layer.working)}) {
    COXSWAIN_ASSIGN_OR_RETURN(*size, Field(json, where, field, 0, kMaxSize, 0));
  }
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t repeat,
                            Field(json, where, "repeat", 1, kMaxLayers, 1));
  if (static_cast<int64_t>(layers->size()) + repeat > kMaxLayers) {
    return Wrong(where,
                 absl::StrCat("a model has at most ", kMaxLayers, " layers"));
  }
  layers->insert(layers->end(), static_cast<size_t>(repeat), layer);
  return absl::OkStatus();
}

// The layers of a transformer as GPT's: learned positions, a norm before
// attention and before the two products, whose middle is four times as wide,
// biases, dropout, a head that is not tied. Activations are those of
// Korthikanti et al. (arXiv:2205.05198, section 4), with e bytes an element in
// place of 2:
//
//   block       s b h (16 e + 2) + a s^2 b (2 e + 1)  [34 s b h + 5 a s^2 b]
//   head        2 e s b h + 4 s b V
//   embedding   s b h, the mask of its dropout
//
// `working`: gradients of what a pass has in its widest place, two at a time.
absl::Status AddTransformer(const Json& json, Model* model) {
  const std::string where = "transformer";
  COXSWAIN_RETURN_IF_ERROR(CheckFields(
      json, where,
      {"layers", "hidden", "heads", "vocabulary", "sequence", "batch"}));
  constexpr int64_t kMost = int64_t{1} << 20;
  std::map<std::string, int64_t> size;
  for (const char* name :
       {"layers", "hidden", "heads", "vocabulary", "sequence", "batch"}) {
    const int64_t most = name == std::string("layers") ? kMaxLayers - 2 : kMost;
    COXSWAIN_ASSIGN_OR_RETURN(size[name], Field(json, where, name, 1, most, 0));
  }
  const int64_t h = size["hidden"];
  const int64_t v = size["vocabulary"];
  const int64_t s = size["sequence"];
  const int64_t e = model->element_bytes;
  // Beyond what any memory has, sums stay in their range.
  const double heads = static_cast<double>(size["heads"]) *
                       static_cast<double>(size["batch"]) *
                       static_cast<double>(s) * static_cast<double>(s);
  const double wide = static_cast<double>(s) *
                      static_cast<double>(size["batch"]) *
                      static_cast<double>(std::max(h, v));
  constexpr double kMostPart = static_cast<double>(kMaxSize) / 256;
  if (heads > kMostPart || wide > kMostPart ||
      static_cast<double>(h) * static_cast<double>(std::max(h, v)) >
          kMostPart) {
    return Wrong(where, "these sizes are larger than any memory");
  }
  const int64_t sbh = s * size["batch"] * h;
  const int64_t sbv = s * size["batch"] * v;
  const int64_t ass = size["heads"] * size["batch"] * s * s;
  model->input = s * size["batch"] * 8;  // tokens, as int64
  model->layers.push_back({"embedding", {v * h, s * h}, sbh, e * sbh, e * sbh});
  const Layer block = {
      "block",
      {3 * h * h, 3 * h, h * h, h, 4 * h * h, 4 * h, 4 * h * h, h, h, h, h, h},
      sbh * (16 * e + 2) + ass * (2 * e + 1),
      e * sbh,
      std::max(8 * e * sbh, 2 * e * ass)};
  model->layers.insert(model->layers.end(), static_cast<size_t>(size["layers"]),
                       block);
  model->layers.push_back(
      {"head", {h, h, v * h}, 2 * e * sbh + 4 * sbv, 0, 2 * e * sbv});
  return absl::OkStatus();
}

absl::Status CheckSums(const Model& model) {
  double sum = static_cast<double>(model.input);
  for (const Layer& layer : model.layers) {
    for (const int64_t elements : layer.tensors) {
      sum += static_cast<double>(elements);
    }
    sum += static_cast<double>(layer.activations) +
           static_cast<double>(layer.output) +
           static_cast<double>(layer.working);
  }
  return sum <= static_cast<double>(kMaxSize)
             ? absl::OkStatus()
             : Wrong("all layers", "together they are larger than any memory");
}

}  // namespace

int64_t Layer::elements() const {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0});
}

absl::StatusOr<Model> ParseModel(absl::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMaxModelText) {
    return Wrong("all of it", absl::StrCat("it has more than ", kMaxModelText,
                                           " bytes: write equal layers once, "
                                           "with \"repeat\""));
  }
  const Json root = Json::parse(text.begin(), text.end(), nullptr,
                                /*allow_exceptions=*/false);
  if (root.is_discarded()) return Wrong("all of it", "it is no JSON");
  COXSWAIN_RETURN_IF_ERROR(CheckFields(
      root, "all of it", {"dtype", "input", "layers", "transformer"}));
  Model model;
  COXSWAIN_ASSIGN_OR_RETURN(model.element_bytes, ElementBytes(root));
  const auto layers = root.find("layers");
  const auto transformer = root.find("transformer");
  if ((layers == root.end()) == (transformer == root.end())) {
    return Wrong("all of it", "give either \"layers\" or \"transformer\"");
  }
  if (transformer != root.end()) {
    COXSWAIN_RETURN_IF_ERROR(AddTransformer(*transformer, &model));
  } else {
    if (!layers->is_array() || layers->empty()) {
      return Wrong("layers", "a list of at least one layer is expected");
    }
    for (size_t i = 0; i < layers->size(); ++i) {
      COXSWAIN_RETURN_IF_ERROR(AddLayers(
          (*layers)[i], absl::StrCat("layers[", i, "]"), &model.layers));
    }
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      model.input, Field(root, "all of it", "input", 0, kMaxSize, model.input));
  COXSWAIN_RETURN_IF_ERROR(CheckSums(model));
  return model;
}

}  // namespace coxswain::memory
