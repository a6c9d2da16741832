#include "base/host_memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace coxswain {
namespace {

constexpr size_t kCacheLine = 64;
// Of x86-64, and of AArch64 with pages of 4 KiB; a multiple of smaller ones.
constexpr size_t kHugePage = size_t{2} << 20;
// From two of them on: below, alignment could cost as much as is asked for.
constexpr size_t kLarge = 2 * kHugePage;

}  // namespace

HostMemory AllocateHostMemory(size_t bytes) {
  const bool large = bytes >= kLarge;
  void* data = nullptr;
  // Not zero bytes, for which the system may have no memory.
  if (posix_memalign(&data, large ? kHugePage : kCacheLine,
                     std::max(bytes, kCacheLine)) != 0) {
    return nullptr;
  }
  // Advice: what the system has no huge page for lies in small ones.
  if (large) (void)madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return HostMemory(data);
}

}  // namespace coxswain
