#include "tests/fuzz/fuzz_bytes.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace coxswain {
namespace {

constexpr uint64_t Signed(int64_t value) {
  return static_cast<uint64_t>(value);
}

constexpr uint64_t kNumbers[] = {
    0,
    1,
    2,
    3,
    Signed(-1),
    Signed(-2),
    127,
    128,
    255,
    256,
    1023,
    1024,
    65535,
    65536,
    uint64_t{1} << 20,
    (uint64_t{1} << 31) - 1,
    uint64_t{1} << 31,
    Signed(std::numeric_limits<int32_t>::min()),
    (uint64_t{1} << 32) - 1,
    uint64_t{1} << 32,
    uint64_t{1} << 53,
    (uint64_t{1} << 53) + 1,
    uint64_t{1} << 62,
    Signed(std::numeric_limits<int64_t>::max()),
    Signed(std::numeric_limits<int64_t>::max() - 1),
    Signed(std::numeric_limits<int64_t>::min()),
    Signed(std::numeric_limits<int64_t>::min() + 1),
    uint64_t{0x7ff0000000000000},  // infinity
    uint64_t{0x7ff8000000000000},  // not a number
};

}  // namespace

uint8_t FuzzBytes::Byte() {
  const absl::string_view taken = Take(1);
  return taken.empty() ? 0 : static_cast<uint8_t>(taken[0]);
}

absl::string_view FuzzBytes::Take(size_t size) {
  const absl::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(taken.size());
  return taken;
}

uint64_t FuzzBytes::Number() {
  constexpr size_t kKnown = std::size(kNumbers);
  const uint8_t which = Byte();
  if (which < kKnown) return kNumbers[which];
  if (which < 200) return which - kKnown;
  uint64_t number = 0;
  for (int i = 0; i < 8; ++i) number = number << 8 | Byte();
  return number;
}

}  // namespace coxswain
