#include "schedule/memory/model_fields.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"

namespace coxswain::memory {
namespace {

// {"shape": [512, 128], "tp": 0, "unit": 4}
absl::StatusOr<Parameter> DividedParameter(const Json& json,
                                           const std::string& where) {
  COXSWAIN_RETURN_IF_ERROR(CheckFields(json, where, {"shape", "tp", "unit"}));
  const auto shape = json.find("shape");
  const std::string field = absl::StrCat(where, ".shape");
  if (shape == json.end() || !shape->is_array() || shape->empty()) {
    return Wrong(field, "a list of at least one size is expected");
  }
  std::vector<int64_t> sizes;
  Parameter parameter;
  parameter.elements = 1;
  for (const Json& one : *shape) {
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t size,
                              SizeOf(one, field, 1, kMaxSize));
    if (size > kMaxSize / parameter.elements) {
      return Wrong(field, "it is larger than any memory");
    }
    parameter.elements *= size;
    sizes.push_back(size);
  }
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t unit,
                            Field(json, where, "unit", 1, kMaxSize, 1));
  if (json.find("tp") == json.end()) return parameter;
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t dimension,
      Field(json, where, "tp", 0, static_cast<int64_t>(sizes.size()) - 1, -1));
  const int64_t size = sizes[static_cast<size_t>(dimension)];
  if (size % unit != 0) {
    return Wrong(absl::StrCat(where, ".unit"),
                 absl::StrCat("a divisor of ", size, " is expected"));
  }
  parameter.parts = size / unit;
  return parameter;
}

}  // namespace

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

absl::StatusOr<int64_t> Field(const Json& map, const std::string& where,
                              const std::string& name, int64_t least,
                              int64_t most, int64_t missing) {
  const auto found = map.find(name);
  const std::string field = absl::StrCat(where, ".", name);
  if (found != map.end()) return SizeOf(*found, field, least, most);
  if (missing >= least) return missing;
  return Wrong(field, "is required");
}

absl::StatusOr<Bytes> BytesField(const Json& map, const std::string& where,
                                 const std::string& name) {
  Bytes bytes;
  const auto found = map.find(name);
  if (found == map.end()) return bytes;
  const std::string field = absl::StrCat(where, ".", name);
  if (!found->is_object()) {
    COXSWAIN_ASSIGN_OR_RETURN(bytes.whole, SizeOf(*found, field, 0, kMaxSize));
    return bytes;
  }
  COXSWAIN_RETURN_IF_ERROR(
      CheckFields(*found, field, {"whole", "tp", "sequence"}));
  for (const auto& [part, size] :
       {std::pair("whole", &bytes.whole), std::pair("tp", &bytes.tp),
        std::pair("sequence", &bytes.sequence)}) {
    COXSWAIN_ASSIGN_OR_RETURN(*size,
                              Field(*found, field, part, 0, kMaxSize, 0));
  }
  return bytes;
}

absl::StatusOr<std::vector<Parameter>> ParametersOf(const Json& layer,
                                                    const std::string& where) {
  std::vector<Parameter> parameters;
  const auto found = layer.find("parameters");
  if (found == layer.end()) return parameters;
  const std::string field = absl::StrCat(where, ".parameters");
  if (!found->is_array()) {
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t elements,
                              SizeOf(*found, field, 0, kMaxSize));
    if (elements > 0) parameters.push_back({elements});
    return parameters;
  }
  for (size_t i = 0; i < found->size(); ++i) {
    const Json& one = (*found)[i];
    if (one.is_object()) {
      COXSWAIN_ASSIGN_OR_RETURN(
          const Parameter parameter,
          DividedParameter(one, absl::StrCat(field, "[", i, "]")));
      parameters.push_back(parameter);
      continue;
    }
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t elements,
                              SizeOf(one, field, 1, kMaxSize));
    parameters.push_back({elements});
  }
  return parameters;
}

}  // namespace coxswain::memory
