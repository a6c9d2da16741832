#ifndef COXSWAIN_SCHEDULE_MEMORY_MODEL_FIELDS_H_
#define COXSWAIN_SCHEDULE_MEMORY_MODEL_FIELDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "schedule/memory/model.h"

// For the sources of this folder: fields of a model's description. Errors are
// INVALID_ARGUMENT, and name the field.
namespace coxswain::memory {

using Json = nlohmann::json;

absl::Status Wrong(absl::string_view where, absl::string_view what);

// Whether `map` is one, whose fields are all among the known ones.
absl::Status CheckFields(const Json& map, const std::string& where,
                         const std::vector<std::string>& known);

absl::StatusOr<int64_t> SizeOf(const Json& value, const std::string& where,
                               int64_t least, int64_t most);

// Returns what a field has, or `missing` where there is none; below `least`:
// there must be one.
absl::StatusOr<int64_t> Field(const Json& map, const std::string& where,
                              const std::string& name, int64_t least,
                              int64_t most, int64_t missing);

// Returns what a field of bytes has: a number of them on each rank, or a map
// {"whole", "tp", "sequence"}; where there is none, none.
absl::StatusOr<Bytes> BytesField(const Json& map, const std::string& where,
                                 const std::string& name);

// Returns the field "parameters" of a layer: a number of elements, or a list of
// such numbers and of maps {"shape", "tp", "unit"}.
absl::StatusOr<std::vector<Parameter>> ParametersOf(const Json& layer,
                                                    const std::string& where);

}  // namespace coxswain::memory

#endif  // COXSWAIN_SCHEDULE_MEMORY_MODEL_FIELDS_H_
