#ifndef COXSWAIN_BASE_PEER_TEXT_H_
#define COXSWAIN_BASE_PEER_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// Text that came from a peer, made fit to be kept and to be shown.

// Cut to at most `max_bytes` with "..." at the end. UTF-8 stays valid, because
// no message could be parsed that carried a half letter.
std::string Shorten(absl::string_view text, size_t max_bytes);

// On one line, whatever is in it; for display. Nothing of it commands a
// terminal: control characters, those of Unicode as well (U+0080 to U+009F),
// are "?".
std::string OneLine(std::string text);

// Whether OneLine() would change it.
bool HasControls(absl::string_view text);

// The first byte of the UTF-8 letter that the byte at `at` belongs to.
size_t LetterStart(absl::string_view text, size_t at);

// The text with U+FFFD in the place of each byte that is no UTF-8: text that
// did not come in a message, which could not be sent in one as it is.
std::string ValidUtf8(absl::string_view text);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_PEER_TEXT_H_
