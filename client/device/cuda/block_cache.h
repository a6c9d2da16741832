#ifndef COXSWAIN_CLIENT_DEVICE_CUDA_BLOCK_CACHE_H_
#define COXSWAIN_CLIENT_DEVICE_CUDA_BLOCK_CACHE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace coxswain {

// Keeps blocks of memory that were returned, and reuses them, because freeing
// one would wait for the GPU. For the CUDA runtime's memory and for pinned
// memory of the host.
//
// Sizes are rounded up, by a quarter at most (small ones to 256 bytes), so that
// buffers whose sizes change a little find a block again. Life-cycle: blocks
// that are not in use are returned to the source at its end. Thread-safe; calls
// the source without holding a lock.
class BlockCache {
 public:
  using Get = std::function<absl::StatusOr<void*>(int64_t bytes)>;
  using GiveBack = std::function<void(void* block)>;
  // If `get` fails with RESOURCE_EXHAUSTED, all blocks that are kept are given
  // back, once, and `get` is called again.
  BlockCache(Get get, GiveBack give_back);
  ~BlockCache();

  // Returns at least `bytes`, which are more than 0. Errors of `get`.
  absl::StatusOr<void*> Take(int64_t bytes);
  // Takes back a block of Take that is not used any more.
  void Return(void* block);

  // Returns what Take(bytes) takes from the source.
  static int64_t Rounded(int64_t bytes);

 private:
  void* TakeKept(int64_t size) ABSL_LOCKS_EXCLUDED(mutex_);
  bool GiveBackKept() ABSL_LOCKS_EXCLUDED(mutex_);

  const Get get_;
  const GiveBack give_back_;
  Mutex mutex_;
  std::unordered_map<void*, int64_t> in_use_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::vector<void*>> kept_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_CUDA_BLOCK_CACHE_H_
