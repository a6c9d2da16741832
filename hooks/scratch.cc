#include "hooks/scratch.h"

#include <map>
#include <new>

#include "base/mutex.h"

namespace coxswain {
namespace {

constexpr size_t kAlignment = 64;
// Idle blocks beyond this are freed: more buckets than that in flight at once
// are rare.
constexpr size_t kMaxIdle = 64;

struct Free {
  void operator()(void* data) const {
    ::operator delete(data, std::align_val_t(kAlignment));
  }
};
using Block = std::unique_ptr<void, Free>;

Block Allocate(size_t bytes) {
  return Block(::operator new(bytes, std::align_val_t(kAlignment)));
}

}  // namespace

struct ScratchPool::Blocks {
  Mutex mutex;
  std::multimap<size_t, Block> idle ABSL_GUARDED_BY(mutex);
};

ScratchPool::ScratchPool() : blocks_(std::make_shared<Blocks>()) {}

std::shared_ptr<void> ScratchPool::TakeBytes(size_t bytes) {
  size_t size = (bytes / kAlignment + 1) * kAlignment;
  Block block;
  {
    MutexLock lock(&blocks_->mutex);
    const auto found = blocks_->idle.lower_bound(size);
    if (found != blocks_->idle.end() && found->first <= 2 * size) {
      size = found->first;
      block = std::move(found->second);
      blocks_->idle.erase(found);
    }
  }
  if (block == nullptr) block = Allocate(size);
  return std::shared_ptr<void>(
      block.release(), [blocks = blocks_, size](void* data) {
        Block returned(data);
        MutexLock lock(&blocks->mutex);
        if (blocks->idle.size() >= kMaxIdle) return;
        blocks->idle.emplace(size, std::move(returned));
      });
}

}  // namespace coxswain
