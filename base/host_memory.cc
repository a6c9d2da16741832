#include "base/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

namespace coxswain {
namespace {

constexpr size_t kCacheLine = 64;
// Of x86-64, and of AArch64 with pages of 4 KiB; a multiple of smaller ones.
constexpr size_t kHugePage = size_t{2} << 20;
// From two of them on: below, alignment could cost as much as is asked for.
constexpr size_t kLarge = 2 * kHugePage;

// Advice: what the system has no huge page for lies in small ones.
void AdviseHugePages(void* data, size_t bytes) {
  (void)madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
}

// Returns zeros that begin with a huge page: null if there are none.
void* MapZeros(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() - kHugePage) return nullptr;
  // Mappings begin anywhere, so one begins in this one.
  void* const mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  const size_t before =
      (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) (void)munmap(begin, before);
  (void)munmap(begin + before + bytes, kHugePage - before);
  AdviseHugePages(begin + before, bytes);
  return begin + before;
}

}  // namespace

HostMemory AllocateHostMemory(size_t bytes) {
  const bool large = bytes >= kLarge;
  void* data = nullptr;
  // Not zero bytes, for which the system may have no memory.
  if (posix_memalign(&data, large ? kHugePage : kCacheLine,
                     std::max(bytes, kCacheLine)) != 0) {
    return nullptr;
  }
  if (large) AdviseHugePages(data, bytes);
  return HostMemory(data);
}

void FreeZeroedMemory::operator()(void* data) const {
  if (mapped_ > 0) {
    (void)munmap(data, mapped_);
  } else {
    std::free(data);
  }
}

ZeroedMemory AllocateZeroedMemory(size_t bytes) {
  if (bytes < kLarge) {
    HostMemory memory = AllocateHostMemory(bytes);
    if (memory != nullptr) std::memset(memory.get(), 0, bytes);
    return ZeroedMemory(memory.release());
  }
  constexpr size_t kPage = 64 << 10;  // of any system, or a multiple
  if (bytes > std::numeric_limits<size_t>::max() - kPage) return nullptr;
  const size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  return ZeroedMemory(MapZeros(mapped), FreeZeroedMemory(mapped));
}

}  // namespace coxswain
