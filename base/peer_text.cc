#include "base/peer_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coxswain {

std::string Shorten(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes - std::min<size_t>(max_bytes, 3);
  end = LetterStart(text, end);
  return absl::StrCat(text.substr(0, end), "...");
}

namespace {

// How many bytes the control character at `at` has; 0: there is none.
size_t ControlAt(absl::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < ' ' || byte == 0x7f) return 1;
  if (byte != 0xc2 || at + 1 == text.size()) return 0;
  return static_cast<unsigned char>(text[at + 1]) < 0xa0 ? 2 : 0;
}

}  // namespace

std::string OneLine(std::string text) {
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t size = ControlAt(text, at);
    if (size > 0) text.replace(at, size, "?");
  }
  return text;
}

bool HasControls(absl::string_view text) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (ControlAt(text, at) > 0) return true;
  }
  return false;
}

size_t LetterStart(absl::string_view text, size_t at) {
  // All bytes of a letter but the first are 10xxxxxx.
  while (at > 0 && at < text.size() && (text[at] & 0xc0) == 0x80) --at;
  return at;
}

}  // namespace coxswain
