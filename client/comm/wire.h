#ifndef COXSWAIN_CLIENT_COMM_WIRE_H_
#define COXSWAIN_CLIENT_COMM_WIRE_H_

#include <cstddef>
#include <cstdint>

namespace coxswain {

// Writes an integer at a place, in little endian, and returns the place after
// it.
template <typename Integer>
char* PutLittleEndian(Integer value, char* at) {
  for (size_t i = 0; i < sizeof(value); ++i) {
    *at++ = static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return at;
}

// Reads what PutLittleEndian wrote, and returns the place after it.
template <typename Integer>
const char* GetLittleEndian(const char* at, Integer* value) {
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    bits |= uint64_t{static_cast<unsigned char>(*at++)} << (8 * i);
  }
  *value = static_cast<Integer>(bits);
  return at;
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_WIRE_H_
