#ifndef COXSWAIN_CLIENT_COMM_NCCL_STAGING_H_
#define COXSWAIN_CLIENT_COMM_NCCL_STAGING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/device/buffer.h"
#include "client/device/runtime.h"

namespace coxswain {

// The way of CPU memory through NCCL, which moves memory of GPUs: pieces of
// pinned memory with as much of the device's. Meant for little of it: pieces
// are kept for reuse, as many as have been in flight at once.
//
// Life-cycle: ends when no piece is on a stream any more; pieces taken and not
// returned go with it. Thread-safe.
class Staging {
 public:
  struct Piece {
    PinnedBuffer host;
    DeviceBuffer device;
  };

  explicit Staging(DeviceRuntime* runtime) : runtime_(runtime) {}

  // One of at least `bytes`; RESOURCE_EXHAUSTED, and other errors of the
  // runtime.
  absl::StatusOr<Piece*> Take(int64_t bytes);
  // Once what was done with it has passed.
  void Return(Piece* piece);

 private:
  DeviceRuntime* const runtime_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Piece>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<Piece*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_STAGING_H_
