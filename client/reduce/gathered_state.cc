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
  int64_t total = 0;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] < 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " could not save its hook's state; see its log"));
    }
    // None of them is added that does not fit, so the sum does not overflow.
    if (sizes[rank] > max_bytes - total) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "ranks 0 to ", rank, " of ", sizes.size(), " offer ", total, " + ",
          sizes[rank], " bytes of hook state, all of which each rank would ",
          "hold, and at most ", max_bytes, " fit this model: implement ",
          "SaveOwn and LoadOwn in the hook, with which each rank keeps its ",
          "own, or change hooks without the state"));
    }
    total += sizes[rank];
  }
  return absl::OkStatus();
}

// Copies rank's bytes to all.
absl::Status Share(int rank, const std::shared_ptr<std::string>& bytes,
                   Communicator& communicator, absl::Duration timeout) {
  Span span;
  span.data = bytes->data();
  span.count = static_cast<int64_t>(bytes->size());
  span.dtype = DType::kUInt8;
  return WaitHolding(communicator.Broadcast(span, rank), bytes, timeout);
}

}  // namespace

absl::StatusOr<HookState> GatherHookState(Hook& hook,
                                          Communicator& communicator,
                                          int64_t max_bytes,
                                          absl::Duration timeout) {
  absl::StatusOr<HookState> own = hook.SaveState(communicator);
  auto bytes = std::make_shared<std::string>(own.ok() ? SerializeHookState(*own)
                                                      : std::string());
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> sizes,
      GatherSizes(own.ok() ? static_cast<int64_t>(bytes->size()) : kFailed,
                  communicator, timeout));
  COXSWAIN_RETURN_IF_ERROR(own.status());
  COXSWAIN_RETURN_IF_ERROR(CheckSizes(sizes, max_bytes));
  std::vector<HookState> shards;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (rank == communicator.rank()) {
      COXSWAIN_RETURN_IF_ERROR(
          Share(rank, std::exchange(bytes, nullptr), communicator, timeout));
      shards.push_back(*std::move(own));
      continue;
    }
    const auto theirs = std::make_shared<std::string>(
        static_cast<size_t>(sizes[static_cast<size_t>(rank)]), '\0');
    COXSWAIN_RETURN_IF_ERROR(Share(rank, theirs, communicator, timeout));
    COXSWAIN_ASSIGN_OR_RETURN(HookState shard, ParseHookState(*theirs));
    shards.push_back(std::move(shard));
  }
  return MergeHookStates(std::move(shards));
}

}  // namespace coxswain
