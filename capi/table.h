#ifndef COXSWAIN_CAPI_TABLE_H_
#define COXSWAIN_CAPI_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"

namespace coxswain::capi {

// Fails in a process forked from the one that has used the library first: it
// has none of its threads, and its locks are as they were in that moment.
absl::Status CheckProcess();

// Returns a number that no handle has had.
uint64_t NextHandle();

// What handles stand for. A handle that is not open, or of another table, is
// an error and never memory of something else. Thread-safe.
template <typename T>
class Table {
 public:
  // `type` is the C type of the handles.
  explicit Table(const char* type) : type_(type) {}

  uint64_t Add(std::shared_ptr<T> entry) {
    const uint64_t handle = NextHandle();
    MutexLock lock(&mutex_);
    entries_.emplace(handle, std::move(entry));
    return handle;
  }

  absl::StatusOr<std::shared_ptr<T>> Find(uint64_t handle) const {
    absl::Status here = CheckProcess();
    if (!here.ok()) return here;
    MutexLock lock(&mutex_);
    const auto found = entries_.find(handle);
    if (found == entries_.end()) return NotOpen(handle);
    return found->second;
  }

  // Returns it and forgets the handle.
  absl::StatusOr<std::shared_ptr<T>> Take(uint64_t handle) {
    absl::Status here = CheckProcess();
    if (!here.ok()) return here;
    MutexLock lock(&mutex_);
    const auto found = entries_.find(handle);
    if (found == entries_.end()) return NotOpen(handle);
    auto entry = std::move(found->second);
    entries_.erase(found);
    return entry;
  }

  bool empty() const {
    MutexLock lock(&mutex_);
    return entries_.empty();
  }

  // Returns all of them and forgets their handles.
  std::map<uint64_t, std::shared_ptr<T>> TakeAll() {
    MutexLock lock(&mutex_);
    return std::exchange(entries_, {});
  }

 private:
  absl::Status NotOpen(uint64_t handle) const {
    return absl::InvalidArgumentError(absl::StrCat(
        type_, " ", handle, " is not open: it was closed, or never was"));
  }

  const char* const type_;
  mutable Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<T>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_TABLE_H_
