#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <cstddef>

namespace coxswain {

uint32_t Crc32c(absl::string_view data, uint32_t seed) {
  // ISA-L takes an int length and works on the inverted register.
  constexpr size_t kMaxPiece = size_t{1} << 30;
  uint32_t crc = ~seed;
  while (!data.empty()) {
    const absl::string_view piece = data.substr(0, kMaxPiece);
    auto* bytes =
        reinterpret_cast<unsigned char*>(const_cast<char*>(piece.data()));
    crc = crc32_iscsi(bytes, static_cast<int>(piece.size()), crc);
    data.remove_prefix(piece.size());
  }
  return ~crc;
}

}  // namespace coxswain
