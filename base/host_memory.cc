#include "base/host_memory.h"

#include <cstdlib>
#include <limits>

namespace coxswain {
namespace {

constexpr size_t kCacheLine = 64;

}  // namespace

void FreeHostMemory::operator()(void* data) const { std::free(data); }

HostMemory AllocateHostMemory(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() - kCacheLine) return nullptr;
  // aligned_alloc wants a multiple of the alignment, and not zero.
  const size_t rounded = (bytes / kCacheLine + 1) * kCacheLine;
  return HostMemory(std::aligned_alloc(kCacheLine, rounded));
}

}  // namespace coxswain
