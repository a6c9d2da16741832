#ifndef COXSWAIN_CLIENT_COMM_SHM_SEGMENT_H_
#define COXSWAIN_CLIENT_COMM_SHM_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Memory that processes of one host share. It has no name: it lives as long as
// a process has its descriptor or has it mapped, however processes end. It is
// sealed against shrinking, so that a peer cannot make an access to it fault.
class Segment {
 public:
  // Fails with RESOURCE_EXHAUSTED if the system has no memory or descriptors
  // left.
  static absl::StatusOr<Segment> Create(int64_t bytes);
  // Maps a peer's segment. Fails with INVALID_ARGUMENT if it is smaller than
  // `bytes`, or not sealed.
  static absl::StatusOr<Segment> Map(UniqueFd fd, int64_t bytes);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Returns -1 after CloseFd; the memory stays mapped.
  int fd() const { return fd_.get(); }
  void CloseFd() { fd_.Close(); }

 private:
  UniqueFd fd_;
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The memory that a rank shares with the other ranks of its host: a segment per
// buffer. Shared by the communicator and its buffers, which may outlive it.
// Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  struct Links {
    // Announce to the peers a new segment, and the end of one.
    std::function<absl::Status(uint64_t id, const Segment& segment)> announce;
    std::function<void(uint64_t id)> forget;
  };
  // Where memory lies; segment 0: not in shared memory.
  struct Location {
    uint64_t segment = 0;
    int64_t offset = 0;
  };

  explicit Arena(Links links) : links_(std::move(links)) {}

  // Returns a zeroed buffer.
  absl::StatusOr<std::unique_ptr<BufferOwner>> Allocate(int64_t count,
                                                        DType dtype);
  Location Find(const Span& span) const;
  // Stops the use of the links.
  void Close();

 private:
  class Buffer;
  void Free(uint64_t id, const char* data);

  mutable Mutex mutex_;
  Links links_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  struct Range {
    uint64_t id = 0;
    int64_t bytes = 0;
  };
  std::map<const char*, Range> ranges_ ABSL_GUARDED_BY(mutex_);  // by start
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_SEGMENT_H_
