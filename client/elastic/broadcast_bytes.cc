#include "client/elastic/broadcast_bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/work.h"

namespace coxswain {
namespace {

// Enough to keep a fast network busy, little enough to hold twice.
constexpr int64_t kChunkBytes = 4 << 20;

absl::StatusOr<int64_t> BroadcastLength(Communicator& communicator,
                                        int64_t length, int root,
                                        absl::Duration timeout) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::shared_ptr<BufferOwner> memory,
                            AllocateHostBuffer(communicator, 1, DType::kInt64));
  auto* const number = static_cast<int64_t*>(memory->span().data);
  *number = length;
  COXSWAIN_RETURN_IF_ERROR(WaitHolding(
      communicator.Broadcast(memory->span(), root), memory, timeout));
  return *number;
}

}  // namespace

absl::StatusOr<std::string> BroadcastBytes(Communicator& communicator,
                                           absl::string_view bytes, int root,
                                           bool want, int64_t max_bytes,
                                           absl::Duration timeout) {
  const bool is_root = communicator.rank() == root;
  COXSWAIN_ASSIGN_OR_RETURN(
      const int64_t length,
      BroadcastLength(communicator, static_cast<int64_t>(bytes.size()), root,
                      timeout));
  if (length < 0 || length > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the state of rank ", root, " has ", length,
                     " bytes besides its tensors, and the limit is ", max_bytes,
                     "; raise RecoveryOptions::max_bytes on all ranks"));
  }
  std::string received;
  if (want && !is_root) received.reserve(static_cast<size_t>(length));
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::shared_ptr<BufferOwner> memory,
      AllocateHostBuffer(communicator, std::min(length, kChunkBytes),
                         DType::kUInt8));
  for (int64_t at = 0; at < length; at += kChunkBytes) {
    const int64_t count = std::min(length - at, kChunkBytes);
    const Span chunk = memory->span().Slice(0, count);
    if (is_root) {
      std::memcpy(chunk.data, bytes.data() + at, static_cast<size_t>(count));
    }
    COXSWAIN_RETURN_IF_ERROR(
        WaitHolding(communicator.Broadcast(chunk, root), memory, timeout));
    if (want && !is_root) {
      received.append(static_cast<const char*>(chunk.data),
                      static_cast<size_t>(count));
    }
  }
  return is_root && want ? std::string(bytes) : received;
}

}  // namespace coxswain
