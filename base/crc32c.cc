#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <cstddef>

namespace coxswain {
namespace {

// Polynomials over GF(2) modulo that of CRC-32C, the highest bit the constant
// term.
constexpr uint32_t kModulus = 0x82f63b78;
constexpr uint32_t kOne = uint32_t{1} << 31;
constexpr uint32_t kOneByte = kOne >> 8;  // x^8

uint32_t Product(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t term = kOne; term != 0; term >>= 1) {
    if ((a & term) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kModulus : 0);
  }
  return product;
}

}  // namespace

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

uint32_t Crc32cConcat(uint32_t first, uint32_t second, uint64_t second_bytes) {
  // The first piece counts as if zeros followed it, as many as the second has.
  uint32_t shift = kOne;
  uint32_t power = kOneByte;
  for (uint64_t left = second_bytes; left != 0; left >>= 1) {
    if ((left & 1) != 0) shift = Product(shift, power);
    power = Product(power, power);
  }
  return Product(first, shift) ^ second;
}

}  // namespace coxswain
