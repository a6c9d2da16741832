#include "client/device/cuda/block_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace coxswain {

BlockCache::BlockCache(Get get, GiveBack give_back)
    : get_(std::move(get)), give_back_(std::move(give_back)) {}

BlockCache::~BlockCache() { GiveBackKept(); }

int64_t BlockCache::Rounded(int64_t bytes) {
  constexpr int64_t kLeast = 256;
  constexpr int64_t kLargest = int64_t{1} << 60;  // beyond any memory
  if (bytes > kLargest) return bytes;
  int64_t power = kLeast;
  while (power * 2 <= bytes) power *= 2;
  const int64_t step = std::max(kLeast, power / 4);
  return (bytes + step - 1) / step * step;
}

absl::StatusOr<void*> BlockCache::Take(int64_t bytes) {
  COXSWAIN_CHECK(bytes > 0);
  const int64_t size = Rounded(bytes);
  void* const kept = TakeKept(size);
  if (kept != nullptr) return kept;
  absl::StatusOr<void*> block = get_(size);
  if (absl::IsResourceExhausted(block.status()) && GiveBackKept()) {
    block = get_(size);
  }
  if (!block.ok()) return block;
  const MutexLock lock(&mutex_);
  in_use_[*block] = size;
  return block;
}

void* BlockCache::TakeKept(int64_t size) {
  const MutexLock lock(&mutex_);
  const auto kept = kept_.find(size);
  if (kept == kept_.end() || kept->second.empty()) return nullptr;
  void* const block = kept->second.back();
  kept->second.pop_back();
  in_use_[block] = size;
  return block;
}

void BlockCache::Return(void* block) {
  const MutexLock lock(&mutex_);
  const auto found = in_use_.find(block);
  COXSWAIN_CHECK(found != in_use_.end() &&
                 "returned memory that was not taken");
  kept_[found->second].push_back(block);
  in_use_.erase(found);
}

bool BlockCache::GiveBackKept() {
  std::map<int64_t, std::vector<void*>> kept;
  {
    const MutexLock lock(&mutex_);
    kept.swap(kept_);
  }
  bool any = false;
  for (const auto& [size, blocks] : kept) {
    for (void* const block : blocks) {
      give_back_(block);
      any = true;
    }
  }
  return any;
}

}  // namespace coxswain
