#include "base/element_names.h"

#include "base/check.h"

namespace coxswain {
namespace {

struct Row {
  ElementType type;
  const char* name;
};
constexpr Row kRows[] = {
    {ElementType::kFloat32, "float32"}, {ElementType::kFloat64, "float64"},
    {ElementType::kFloat16, "float16"}, {ElementType::kBFloat16, "bfloat16"},
    {ElementType::kInt8, "int8"},       {ElementType::kInt32, "int32"},
    {ElementType::kInt64, "int64"},     {ElementType::kUInt8, "uint8"},
};

}  // namespace

absl::string_view NameOf(ElementType type) {
  for (const Row& row : kRows) {
    if (row.type == type) return row.name;
  }
  COXSWAIN_CHECK(false);
  return "";
}

std::optional<ElementType> ElementTypeFromName(absl::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.type;
  }
  return std::nullopt;
}

}  // namespace coxswain
