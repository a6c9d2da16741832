#include "hooks/scratch.h"

#include <map>
#include <utility>

#include "base/check.h"
#include "base/host_memory.h"
#include "base/mutex.h"

namespace coxswain {
namespace {

// Sizes are multiples of it, so that more requests fit an idle block.
constexpr size_t kSizeStep = 64;
// Idle blocks beyond this are freed: more buckets than that in flight at once
// are rare.
constexpr size_t kMaxIdle = 64;

}  // namespace

struct ScratchPool::Blocks {
  Mutex mutex;
  std::multimap<size_t, HostMemory> idle ABSL_GUARDED_BY(mutex);
};

ScratchPool::ScratchPool() : blocks_(std::make_shared<Blocks>()) {}

std::shared_ptr<void> ScratchPool::TakeBytes(size_t bytes) {
  size_t size = (bytes / kSizeStep + 1) * kSizeStep;
  HostMemory block;
  {
    MutexLock lock(&blocks_->mutex);
    const auto found = blocks_->idle.lower_bound(size);
    if (found != blocks_->idle.end() && found->first <= 2 * size) {
      size = found->first;
      block = std::move(found->second);
      blocks_->idle.erase(found);
    }
  }
  if (block == nullptr) block = AllocateHostMemory(size);
  COXSWAIN_CHECK(block != nullptr);
  return std::shared_ptr<void>(
      block.release(), [blocks = blocks_, size](void* data) {
        HostMemory returned(data);
        MutexLock lock(&blocks->mutex);
        if (blocks->idle.size() >= kMaxIdle) return;
        blocks->idle.emplace(size, std::move(returned));
      });
}

}  // namespace coxswain
