#include "client/comm/rank_values.h"

#include <algorithm>
#include <memory>

#include "base/status_macros.h"
#include "client/comm/work.h"

namespace coxswain {

absl::StatusOr<std::vector<int64_t>> ReduceValues(
    Communicator& communicator, const std::vector<int64_t>& own, ReduceOp op,
    absl::Duration timeout) {
  const auto count = static_cast<int64_t>(own.size());
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::shared_ptr<BufferOwner> memory,
      AllocateHostBuffer(communicator, count, DType::kInt64));
  auto* const values = static_cast<int64_t*>(memory->span().data);
  std::copy(own.begin(), own.end(), values);
  COXSWAIN_RETURN_IF_ERROR(
      WaitHolding(communicator.AllReduce(memory->span(), op), memory, timeout));
  return std::vector<int64_t>(values, values + count);
}

absl::StatusOr<std::vector<int64_t>> GatherValues(
    Communicator& communicator, const std::vector<int64_t>& own,
    absl::Duration timeout) {
  std::vector<int64_t> all(own.size() *
                           static_cast<size_t>(communicator.size()));
  std::copy(own.begin(), own.end(),
            all.begin() +
                static_cast<std::ptrdiff_t>(own.size()) * communicator.rank());
  return ReduceValues(communicator, all, ReduceOp::kSum, timeout);
}

}  // namespace coxswain
