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

std::string OneLine(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 0x7f) c = '?';
  }
  return text;
}

size_t LetterStart(absl::string_view text, size_t at) {
  // All bytes of a letter but the first are 10xxxxxx.
  while (at > 0 && at < text.size() && (text[at] & 0xc0) == 0x80) --at;
  return at;
}

}  // namespace coxswain
