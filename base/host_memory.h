#ifndef COXSWAIN_BASE_HOST_MEMORY_H_
#define COXSWAIN_BASE_HOST_MEMORY_H_

#include <cstddef>
#include <memory>

namespace coxswain {

struct FreeHostMemory {
  void operator()(void* data) const;
};
using HostMemory = std::unique_ptr<void, FreeHostMemory>;

// Memory with undefined contents, aligned to a cache line, which is also what
// wide vector loads like. Null if there is none. Thread-safe.
HostMemory AllocateHostMemory(size_t bytes);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_HOST_MEMORY_H_
