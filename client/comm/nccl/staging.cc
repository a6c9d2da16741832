#include "client/comm/nccl/staging.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr int64_t kLeast = 4096;

int64_t RoundUp(int64_t bytes) {
  int64_t size = kLeast;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

absl::StatusOr<Staging::Piece*> Staging::Take(int64_t bytes) {
  const int64_t size = RoundUp(bytes);
  {
    MutexLock lock(&mutex_);
    const auto fits = [size](const Piece* piece) {
      return piece->host.bytes() == size;
    };
    const auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found != free_.end()) {
      Piece* const piece = *found;
      free_.erase(found);
      return piece;
    }
  }
  auto piece = std::make_unique<Piece>();
  COXSWAIN_ASSIGN_OR_RETURN(piece->host, PinnedBuffer::Make(runtime_, size));
  COXSWAIN_ASSIGN_OR_RETURN(piece->device, DeviceBuffer::Make(runtime_, size));
  MutexLock lock(&mutex_);
  all_.push_back(std::move(piece));
  return all_.back().get();
}

void Staging::Return(Piece* piece) {
  MutexLock lock(&mutex_);
  free_.push_back(piece);
}

}  // namespace coxswain
