#include "server/parameter/byte_budget.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/parameter/parameter_limits.h"

namespace coxswain::server {

absl::Status ByteBudget::Take(int64_t bytes) {
  const int64_t before = used_.fetch_add(bytes);
  if (before > limit_ - bytes) {
    used_.fetch_sub(bytes);
    return ParameterLimitError(
        limit_name_, limit_,
        absl::StrCat(
            bytes, " more do not fit beside ", before,
            " in use: wait until others have been sent theirs, or raise it"));
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

absl::StatusOr<BudgetCharge> BudgetCharge::Take(
    std::shared_ptr<ByteBudget> budget, int64_t bytes) {
  BudgetCharge charge(std::move(budget));
  COXSWAIN_RETURN_IF_ERROR(charge.Grow(bytes));
  return charge;
}

BudgetCharge& BudgetCharge::operator=(BudgetCharge&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::move(other.budget_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

absl::Status BudgetCharge::Grow(int64_t bytes) {
  if (budget_ != nullptr) COXSWAIN_RETURN_IF_ERROR(budget_->Take(bytes));
  bytes_ += bytes;
  return absl::OkStatus();
}

void BudgetCharge::Shrink(int64_t bytes) {
  bytes_ -= bytes;
  if (budget_ != nullptr && bytes != 0) budget_->GiveBack(bytes);
}

absl::StatusOr<std::shared_ptr<ChunkBuffer>> ChunkBuffer::Make(
    std::string bytes, uint32_t crc32c,
    const std::shared_ptr<ByteBudget>& budget) {
  COXSWAIN_ASSIGN_OR_RETURN(
      BudgetCharge charge,
      BudgetCharge::Take(
          budget, static_cast<int64_t>(bytes.capacity()) + kOverheadBytes));
  return std::shared_ptr<ChunkBuffer>(
      new ChunkBuffer(std::move(bytes), crc32c, std::move(charge)));
}

}  // namespace coxswain::server
