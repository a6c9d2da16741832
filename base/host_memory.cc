#include "base/host_memory.h"

#include <sys/mman.h>

#include <cstdlib>

namespace coxswain {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// Below, what rounding up to whole pages wastes would show.
constexpr size_t kLarge = 2 * kHugePage;

}  // namespace

void FreeHostMemory::operator()(void* data) const { std::free(data); }

HostMemory AllocateHostMemory(size_t bytes) {
  const size_t alignment = bytes < kLarge ? kCacheLine : kHugePage;
  // aligned_alloc wants a multiple of the alignment, and not zero.
  const size_t rounded = (bytes / alignment + 1) * alignment;
  if (rounded < bytes) return nullptr;
  HostMemory memory(std::aligned_alloc(alignment, rounded));
  // A wish: without huge pages everything works, too.
  if (memory != nullptr && alignment == kHugePage) {
    (void)madvise(memory.get(), rounded, MADV_HUGEPAGE);
  }
  return memory;
}

}  // namespace coxswain
