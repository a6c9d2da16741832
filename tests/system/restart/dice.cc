#include "tests/system/restart/dice.h"

#include <limits>

namespace coxswain {

int64_t Dice::Number() {
  static const auto* const edges = new std::vector<int64_t>{
      -7,
      -2,
      -1,
      0,
      1,
      2,
      std::numeric_limits<int32_t>::max(),
      (int64_t{1} << 53) - 2,
      (int64_t{1} << 53) - 1,
      int64_t{1} << 53,
      (int64_t{1} << 53) + 1,
      std::numeric_limits<int64_t>::max() - 1,
      std::numeric_limits<int64_t>::max(),
      std::numeric_limits<int64_t>::min(),
  };
  if (Chance(8)) return static_cast<int64_t>(Bits());
  return One(*edges);
}

std::string Dice::Text(size_t bound) {
  static const auto* const letters = new std::vector<std::string>{
      "a",
      "Z",
      "7",
      " ",
      "'",
      "\"",
      "\\",
      "\n",
      "\t",
      "\x01",
      "\x7f",
      "\xc2\x85",
      "=",
      "\xc3\xa9",
      "\xe6\xbc\xa2",
      "\xf0\x9f\x9a\xa3",
  };
  size_t bytes = bound;
  switch (Below(4)) {
    case 0:
      bytes = Below(12);
      break;
    case 1:
      bytes = bound + 1;
      break;
    case 2:
      bytes = Below(bound + 1);
      break;
    default:
      break;
  }
  // Mostly letters that may be everywhere.
  const bool plain = Chance(2);
  std::string text;
  while (text.size() < bytes) {
    const std::string& letter = plain ? (*letters)[Below(3)] : One(*letters);
    text += text.size() + letter.size() <= bytes ? letter : "a";
  }
  return text;
}

std::string Dice::Bytes(size_t most) {
  std::string bytes(Below(most + 1), '\0');
  for (char& byte : bytes) byte = static_cast<char>(Bits());
  return bytes;
}

}  // namespace coxswain
