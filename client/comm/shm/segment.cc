#include "client/comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr int64_t kHugePage = 2 << 20;

absl::Status Exhausted(const char* what, int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot ", what, " ", bytes,
                   " bytes of shared memory: ", std::strerror(errno)));
}

// More than any machine has, and their bytes can still be counted.
constexpr int64_t kMaxElements = int64_t{1} << 56;

}  // namespace

Segment::Segment(Segment&& other) noexcept { *this = std::move(other); }

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Segment::~Segment() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

absl::StatusOr<Segment> Segment::Create(int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 1);
  UniqueFd fd(memfd_create("coxswain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Exhausted("create", bytes);
  if (ftruncate(fd.get(), bytes) != 0) return Exhausted("reserve", bytes);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return Exhausted("seal", bytes);
  }
  return Map(std::move(fd), bytes);
}

absl::StatusOr<Segment> Segment::Map(UniqueFd fd, int64_t bytes) {
  struct stat info {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      fstat(fd.get(), &info) != 0 || bytes < 1 || info.st_size < bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a peer offers shared memory of ", info.st_size, " bytes, ",
        seals >= 0 && (seals & F_SEAL_SHRINK) != 0 ? "" : "not sealed, ",
        "where ", bytes, " are expected"));
  }
  void* const data = mmap(nullptr, static_cast<size_t>(bytes),
                          PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Exhausted("map", bytes);
  if (bytes >= kHugePage) {
    (void)madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  }
  Segment segment;
  segment.fd_ = std::move(fd);
  segment.data_ = static_cast<char*>(data);
  segment.bytes_ = bytes;
  return segment;
}

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
