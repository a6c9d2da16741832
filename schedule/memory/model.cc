#include "schedule/memory/model.h"

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/memory/model_fields.h"
#include "schedule/memory/transformer.h"

namespace coxswain::memory {
namespace {

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
  COXSWAIN_ASSIGN_OR_RETURN(layer.parameters, ParametersOf(json, where));
  for (const auto& [field, size] :
       {std::pair("activations", &layer.activations),
        std::pair("output", &layer.output),
        std::pair("working", &layer.working)}) {
    COXSWAIN_ASSIGN_OR_RETURN(*size, BytesField(json, where, field));
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

absl::Status CheckSums(const Model& model) {
  double sum = static_cast<double>(model.input);
  for (const Layer& layer : model.layers) {
    for (const Parameter& parameter : layer.parameters) {
      sum += static_cast<double>(parameter.elements);
    }
    for (const Bytes* bytes :
         {&layer.activations, &layer.output, &layer.working}) {
      sum += static_cast<double>(bytes->whole) +
             static_cast<double>(bytes->tp) +
             static_cast<double>(bytes->sequence);
    }
  }
  return sum <= static_cast<double>(kMaxSize)
             ? absl::OkStatus()
             : Wrong("all layers", "together they are larger than any memory");
}

}  // namespace

int64_t Layer::elements() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters) sum += parameter.elements;
  return sum;
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
