#ifndef COXSWAIN_BASE_ELEMENT_NAMES_H_
#define COXSWAIN_BASE_ELEMENT_NAMES_H_

#include <optional>

#include "absl/strings/string_view.h"
#include "base/element_type.h"

namespace coxswain {

absl::string_view NameOf(ElementType type);  // "float32", ...
std::optional<ElementType> ElementTypeFromName(absl::string_view name);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_ELEMENT_NAMES_H_
