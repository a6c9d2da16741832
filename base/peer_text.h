#ifndef COXSWAIN_BASE_PEER_TEXT_H_
#define COXSWAIN_BASE_PEER_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// Makes text of a peer safe to store and to display.

// Returns the text, cut to at most `max_bytes` with "..." at the end. UTF-8
// stays valid: a message with half a letter could not be parsed.
std::string Shorten(absl::string_view text, size_t max_bytes);

// Returns the text on one line, for display. Control characters, also those of
// Unicode (U+0080 to U+009F), become "?", so that none of them reaches a
// terminal.
std::string OneLine(std::string text);

// Returns whether OneLine() would change the text.
bool HasControls(absl::string_view text);

// Returns the first byte of the UTF-8 letter that the byte at `at` belongs to.
size_t LetterStart(absl::string_view text, size_t at);

// Returns the text with U+FFFD in the place of each byte that is no UTF-8: a
// message can carry nothing else.
std::string ValidUtf8(absl::string_view text);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_PEER_TEXT_H_
