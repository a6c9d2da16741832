#include "client/comm/shm/arena.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// More than any machine has, and their bytes can still be counted.
constexpr int64_t kMaxElements = int64_t{1} << 56;

}  // namespace

class Arena::Buffer : public BufferOwner {
 public:
  Buffer(std::shared_ptr<Arena> arena, uint64_t id, Segment segment,
         int64_t count, DType dtype)
      : arena_(std::move(arena)), id_(id), segment_(std::move(segment)) {
    span_.data = segment_.data();
    span_.count = count;
    span_.dtype = dtype;
  }
  ~Buffer() override { arena_->Free(id_, segment_.data()); }
  Span span() const override { return span_; }

 private:
  const std::shared_ptr<Arena> arena_;
  const uint64_t id_;
  const Segment segment_;
  Span span_;
};

absl::StatusOr<std::unique_ptr<BufferOwner>> Arena::Allocate(int64_t count,
                                                             DType dtype) {
  if (count > kMaxElements) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a buffer of ", count, " elements"));
  }
  const int64_t bytes = count * static_cast<int64_t>(SizeOf(dtype));
  COXSWAIN_ASSIGN_OR_RETURN(Segment segment, Segment::Create(bytes));
  MutexLock lock(&mutex_);
  const uint64_t id = ++last_id_;
  if (!closed_) COXSWAIN_RETURN_IF_ERROR(links_.announce(id, segment));
  segment.CloseFd();
  ranges_[segment.data()] = {id, segment.bytes()};
  return std::make_unique<Buffer>(shared_from_this(), id, std::move(segment),
                                  count, dtype);
}

Arena::Location Arena::Find(const Span& span) const {
  const char* const data = static_cast<const char*>(span.data);
  MutexLock lock(&mutex_);
  auto next = ranges_.upper_bound(data);
  if (next == ranges_.begin()) return {};
  const auto& [start, range] = *--next;
  if (data + span.bytes() > start + range.bytes) return {};
  return {range.id, data - start};
}

void Arena::Free(uint64_t id, const char* data) {
  MutexLock lock(&mutex_);
  ranges_.erase(data);
  if (!closed_) links_.forget(id);
}

void Arena::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
}

}  // namespace coxswain
