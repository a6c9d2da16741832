#include "server/parameter/byte_budget.h"

#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

absl::Status ByteBudget::Take(int64_t bytes) {
  const int64_t before = used_.fetch_add(bytes);
  if (before > limit_ - bytes) {
    used_.fetch_sub(bytes);
    return ParameterLimitError(limit_name_, limit_,
                               "wait until others have pulled, or raise it");
  }
  if (parent_ == nullptr) return absl::OkStatus();
  absl::Status status = parent_->Take(bytes);
  if (!status.ok()) used_.fetch_sub(bytes);
  return status;
}

void ByteBudget::GiveBack(int64_t bytes) {
  used_.fetch_sub(bytes);
  if (parent_ != nullptr) parent_->GiveBack(bytes);
}

absl::StatusOr<std::shared_ptr<ChunkBuffer>> ChunkBuffer::Make(
    std::string bytes, uint32_t crc32c,
    const std::shared_ptr<ByteBudget>& budget) {
  absl::Status taken = budget->Take(static_cast<int64_t>(bytes.size()));
  if (!taken.ok()) return taken;
  return std::shared_ptr<ChunkBuffer>(
      new ChunkBuffer(std::move(bytes), crc32c, budget));
}

ChunkBuffer::ChunkBuffer(std::string bytes_in, uint32_t crc32c_in,
                         std::shared_ptr<ByteBudget> budget)
    : bytes(std::move(bytes_in)),
      crc32c(crc32c_in),
      budget_(std::move(budget)),
      taken_(static_cast<int64_t>(bytes.size())) {}

ChunkBuffer::~ChunkBuffer() { budget_->GiveBack(taken_); }

}  // namespace coxswain::server
