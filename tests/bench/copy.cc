#include "tests/bench/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace coxswain::bench {

void StreamCopy(void* to, const void* from, size_t bytes) {
#if defined(__SSE2__)
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  constexpr size_t kLine = 64;
  const size_t offset = reinterpret_cast<uintptr_t>(out) % kLine;
  const size_t head = std::min(bytes, (kLine - offset) % kLine);
  std::memcpy(out, in, head);
  size_t i = head;
  for (; i + kLine <= bytes; i += kLine) {
    for (size_t part = 0; part < kLine; part += sizeof(__m128i)) {
      const __m128i value =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i + part));
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i + part), value);
    }
  }
  _mm_sfence();
  std::memcpy(out + i, in + i, bytes - i);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace coxswain::bench
