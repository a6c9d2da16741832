#include "base/peer_text.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// Returns how many bytes the control character at `at` has; 0: there is none.
size_t ControlAt(absl::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < ' ' || byte == 0x7f) return 1;
  if (byte != 0xc2 || at + 1 == text.size()) return 0;
  return static_cast<unsigned char>(text[at + 1]) < 0xa0 ? 2 : 0;
}

constexpr char kReplacement[] = "\xef\xbf\xbd";

uint8_t ByteAt(absl::string_view text, size_t at) {
  return static_cast<uint8_t>(text[at]);
}

size_t LengthBy(uint8_t first) {
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return 2;
  if (first >= 0xe0 && first <= 0xef) return 3;
  if (first >= 0xf0 && first <= 0xf4) return 4;
  return 0;
}

// Returns whether the two bytes may begin a letter: not longer than necessary,
// no surrogate, not past the last code point.
bool IsSecond(uint8_t first, uint8_t second) {
  const uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  return second >= least && second <= most;
}

// Returns how many bytes the letter has that the text begins with; 0: it begins
// with none.
size_t LetterLength(absl::string_view text) {
  const size_t length = LengthBy(ByteAt(text, 0));
  if (length == 0 || length > text.size()) return 0;
  if (length > 1 && !IsSecond(ByteAt(text, 0), ByteAt(text, 1))) return 0;
  for (size_t at = 2; at < length; ++at) {
    if ((ByteAt(text, at) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string Shorten(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  size_t end = max_bytes - std::min<size_t>(max_bytes, 3);
  end = LetterStart(text, end);
  return absl::StrCat(text.substr(0, end), "...");
}

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

std::string ValidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t length = LetterLength(text);
    if (length == 0) {
      valid += kReplacement;
      text.remove_prefix(1);
    } else {
      valid.append(text.data(), length);
      text.remove_prefix(length);
    }
  }
  return valid;
}

}  // namespace coxswain
