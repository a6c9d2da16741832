#ifndef COXSWAIN_BASE_HOST_MEMORY_H_
#define COXSWAIN_BASE_HOST_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace coxswain {

struct FreeHostMemory {
  void operator()(void* data) const { std::free(data); }
};
using HostMemory = std::unique_ptr<void, FreeHostMemory>;

// Returns memory with undefined contents, aligned to a cache line, as wide
// vector loads need it. Returns null if there is none. Large memory lies in
// huge pages where the system has them to give, which makes it faster to copy.
// Thread-safe.
HostMemory AllocateHostMemory(size_t bytes);

// Frees what AllocateZeroedMemory returned.
class FreeZeroedMemory {
 public:
  FreeZeroedMemory() = default;
  explicit FreeZeroedMemory(size_t mapped) : mapped_(mapped) {}
  void operator()(void* data) const;

 private:
  size_t mapped_ = 0;  // bytes; 0: it is of the heap
};
using ZeroedMemory = std::unique_ptr<void, FreeZeroedMemory>;

// Returns memory as AllocateHostMemory does, of zeros. Of large memory the
// system gives only what is used, once it is.
ZeroedMemory AllocateZeroedMemory(size_t bytes);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_HOST_MEMORY_H_
