#include "client/reduce/gathered_state.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/wait_holding.h"

namespace coxswain {
namespace {

// What a rank offers in place of a size when it has failed.
constexpr int64_t kFailed = -1;

absl::StatusOr<std::vector<int64_t>> GatherSizes(int64_t own,
                                                 Communicator& communicator,
                                                 absl::Duration timeout) {
  auto sizes = std::make_shared<std::vector<int64_t>>(
      static_cast<size_t>(communicator.size()));
  (*sizes)[static_cast<size_t>(communicator.rank())] = own;
  Span span;
  span.data = sizes->data();
  span.count = communicator.size();
  span.dtype = DType::kInt64;
  COXSWAIN_RETURN_IF_ERROR(
      WaitHolding(communicator.AllReduce(span), sizes, timeout));
  return *sizes;
}

absl::Status CheckSizes(const std::vector<int64_t>& sizes, int64_t max_bytes) {
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] < 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " could not save its hook's state; see its log"));
    }
    if (sizes[rank] > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "rank ", rank, " offers ", sizes[rank],
          " bytes of hook state; at most ", max_bytes, " fit this model"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HookState> ReceiveShard(int rank, std::string bytes,
                                       Communicator& communicator,
                                       absl::Duration timeout) {
  auto memory = std::make_shared<std::string>(std::move(bytes));
  Span span;
  span.data = memory->data();
  span.count = static_cast<int64_t>(memory->size());
  span.dtype = DType::kUInt8;
  COXSWAIN_RETURN_IF_ERROR(
      WaitHolding(communicator.Broadcast(span, rank), memory, timeout));
  return ParseHookState(*memory);
}

}  // namespace

absl::StatusOr<HookState> GatherHookState(Hook& hook,
                                          Communicator& communicator,
                                          int64_t max_bytes,
                                          absl::Duration timeout) {
  absl::StatusOr<HookState> own = hook.SaveState(communicator);
  const std::string bytes = own.ok() ? SerializeHookState(*own) : "";
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> sizes,
      GatherSizes(own.ok() ? static_cast<int64_t>(bytes.size()) : kFailed,
                  communicator, timeout));
  COXSWAIN_RETURN_IF_ERROR(own.status());
  COXSWAIN_RETURN_IF_ERROR(CheckSizes(sizes, max_bytes));
  std::vector<HookState> shards;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    std::string buffer =
        rank == communicator.rank()
            ? bytes
            : std::string(static_cast<size_t>(sizes[static_cast<size_t>(rank)]),
                          '\0');
    COXSWAIN_ASSIGN_OR_RETURN(
        HookState shard,
        ReceiveShard(rank, std::move(buffer), communicator, timeout));
    shards.push_back(std::move(shard));
  }
  return MergeHookStates(std::move(shards));
}

}  // namespace coxswain
