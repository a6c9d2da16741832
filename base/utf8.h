#ifndef COXSWAIN_BASE_UTF8_H_
#define COXSWAIN_BASE_UTF8_H_

#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// The text with U+FFFD in the place of each byte that is no UTF-8: text that
// did not come in a message, which could not be sent in one as it is.
std::string ValidUtf8(absl::string_view text);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_UTF8_H_
