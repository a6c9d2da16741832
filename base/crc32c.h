#ifndef COXSWAIN_BASE_CRC32C_H_
#define COXSWAIN_BASE_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace coxswain {

// Returns the CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `data`. To
// checksum a stream in pieces, pass the value of the pieces before as `seed`.
uint32_t Crc32c(absl::string_view data, uint32_t seed = 0);

// Returns the value of two pieces in a row, from the value of each and the
// second one's length, without reading the pieces again.
uint32_t Crc32cConcat(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_CRC32C_H_
