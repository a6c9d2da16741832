#include "client/comm/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

constexpr int64_t kHugePage = 2 << 20;

absl::Status Exhausted(const char* what, int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot ", what, " ", bytes,
                   " bytes of shared memory: ", std::strerror(errno)));
}

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

}  // namespace coxswain
