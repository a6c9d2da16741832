#include "client/reduce/bucket_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "base/wait_count.h"
#include "client/reduce/bucket_slices.h"

namespace coxswain {

void BucketPool::SetBuckets(const std::vector<Bucket>& buckets) {
  MutexLock lock(&mutex_);
  entries_.clear();
  free_.clear();
  largest_ = needed_ = most_ = most_before_ = 0;
  use_.bytes = 0;
  for (const Bucket& bucket : buckets) {
    Entry entry;
    entry.data = bucket.data;
    entry.elements =
        BucketSlices::Of(bucket.data, communicator_.size()).padded();
    entry.bytes =
        entry.elements * static_cast<int64_t>(SizeOf(bucket.data.dtype));
    entry.gradients = bucket.gradients.size();
    largest_ = std::max(largest_, entry.bytes);
    entries_.push_back(std::move(entry));
  }
}

void BucketPool::BeginStep() {
  MutexLock lock(&mutex_);
  exchanging_ = true;
  awaited_ = -1;
  for (Entry& entry : entries_) entry.pending = entry.gradients;
}

void BucketPool::AwaitSpace(int bucket) {
  if (wait_ <= absl::ZeroDuration()) return;
  MutexLock lock(&mutex_);
  const Entry& entry = entries_[static_cast<size_t>(bucket)];
  const WaitCount::Scope waits(communicator_.waits().get());
  (void)changed_.WaitFor(&mutex_, wait_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return entry.block.owner != nullptr ||
           needed_ + entry.bytes <= (kKept - 1) * largest_ || starved();
  });
}

void BucketPool::NoteGradient(int bucket) {
  MutexLock lock(&mutex_);
  --entries_[static_cast<size_t>(bucket)].pending;
}

void BucketPool::SetAwaited(int bucket) {
  MutexLock lock(&mutex_);
  awaited_ = bucket;
  changed_.NotifyAll();
}

void BucketPool::EndExchange() {
  MutexLock lock(&mutex_);
  exchanging_ = false;
  changed_.NotifyAll();
}

absl::StatusOr<Span> BucketPool::Take(int bucket) {
  MutexLock lock(&mutex_);
  Entry& entry = entries_[static_cast<size_t>(bucket)];
  if (entry.block.owner == nullptr) {
    // The smallest that fits. A much larger one would be missed by a bucket of
    // its own size, for which another one would be allocated.
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->bytes < entry.bytes || it->bytes > 2 * entry.bytes) continue;
      if (best == free_.end() || it->bytes < best->bytes) best = it;
    }
    if (best != free_.end()) {
      entry.block = std::move(*best);
      free_.erase(best);
    } else {
      COXSWAIN_ASSIGN_OR_RETURN(entry.block, Allocate(entry));
    }
    needed_ += entry.bytes;
    most_ = std::max(most_, needed_);
  }
  Span data = entry.data;
  data.data = entry.block.owner->span().data;
  return data;
}

absl::StatusOr<BucketPool::Block> BucketPool::Allocate(const Entry& entry) {
  Trim(entry.bytes);
  absl::StatusOr<std::unique_ptr<BufferOwner>> owner =
      communicator_.AllocateBuffer(entry.elements, entry.data.dtype);
  if (!owner.ok()) {
    return WithPrefix(
        absl::StrCat("memory of ", entry.bytes, " bytes for a bucket, beside ",
                     use_.bytes, " that buckets hold: "),
        owner.status());
  }
  use_.bytes += entry.bytes;
  use_.peak_bytes = std::max(use_.peak_bytes, use_.bytes);
  ++use_.allocations;
  return Block{*std::move(owner), entry.bytes};
}

void BucketPool::GiveBack(int bucket) {
  MutexLock lock(&mutex_);
  PutBack(entries_[static_cast<size_t>(bucket)]);
}

void BucketPool::PutBack(Entry& entry) {
  if (entry.block.owner == nullptr) return;
  needed_ -= entry.bytes;
  free_.push_back(std::exchange(entry.block, Block()));
  changed_.NotifyAll();
}

void BucketPool::EndStep() {
  MutexLock lock(&mutex_);
  for (Entry& entry : entries_) PutBack(entry);
  most_before_ = std::exchange(most_, 0);
  Trim(0);
}

void BucketPool::Trim(int64_t more) {
  const int64_t bound =
      std::max({most_, most_before_, needed_ + more, kKept * largest_});
  while (!free_.empty() && use_.bytes + more > bound) {
    const auto smallest = std::min_element(
        free_.begin(), free_.end(),
        [](const Block& a, const Block& b) { return a.bytes < b.bytes; });
    use_.bytes -= smallest->bytes;
    free_.erase(smallest);
  }
}

BucketMemoryUse BucketPool::use() const {
  MutexLock lock(&mutex_);
  return use_;
}

}  // namespace coxswain
