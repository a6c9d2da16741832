#ifndef COXSWAIN_CLIENT_COMM_SHM_ARENA_H_
#define COXSWAIN_CLIENT_COMM_SHM_ARENA_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/comm/shm/segment.h"

namespace coxswain {

// The memory that a rank shares with the other ranks of its host: a segment per
// buffer. Shared by the communicator and its buffers, which may outlive it.
// Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  struct Links {
    // Tell the peers of a new segment, and that one is gone.
    std::function<absl::Status(uint64_t id, const Segment& segment)> announce;
    std::function<void(uint64_t id)> forget;
  };
  // Where memory lies; segment 0: in none.
  struct Location {
    uint64_t segment = 0;
    int64_t offset = 0;
  };

  explicit Arena(Links links) : links_(std::move(links)) {}

  // A zeroed buffer.
  absl::StatusOr<std::unique_ptr<BufferOwner>> Allocate(int64_t count,
                                                        DType dtype);
  Location Find(const Span& span) const;
  // The links are not used any more.
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

#endif  // COXSWAIN_CLIENT_COMM_SHM_ARENA_H_
