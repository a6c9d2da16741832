#ifndef COXSWAIN_BASE_HOST_MEMORY_H_
#define COXSWAIN_BASE_HOST_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>

namespace coxswain {

struct FreeHostMemory {
  void operator()(void* data) const { std::free(data); }
};
using HostMemory = std::unique_ptr<void, FreeHostMemory>;

// Returns memory with undefined contents, aligned to a cache line, as wide
// vector loads need it. Returns null if there is none. Thread-safe.
inline HostMemory AllocateHostMemory(size_t bytes) {
  constexpr size_t kCacheLine = 64;
  if (bytes > std::numeric_limits<size_t>::max() - kCacheLine) return nullptr;
  // aligned_alloc requires a multiple of the alignment, and not zero.
  const size_t rounded = (bytes / kCacheLine + 1) * kCacheLine;
  return HostMemory(std::aligned_alloc(kCacheLine, rounded));
}

}  // namespace coxswain

#endif  // COXSWAIN_BASE_HOST_MEMORY_H_
