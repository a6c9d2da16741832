#ifndef COXSWAIN_SERVER_PARAMETER_BYTE_BUDGET_H_
#define COXSWAIN_SERVER_PARAMETER_BYTE_BUDGET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include <atomic>

namespace coxswain::server {

// Bounds what peers may make the coordinator hold: bytes, or a number of
// objects. Thread-safe.
class ByteBudget {
 public:
  // `limit_name` is for messages. What is taken here is taken from `parent`
  // too, which may be null.
  ByteBudget(const char* limit_name, int64_t limit,
             std::shared_ptr<ByteBudget> parent = nullptr)
      : limit_name_(limit_name), limit_(limit), parent_(std::move(parent)) {}

  // Fails with RESOURCE_EXHAUSTED, which names the limit, what was asked for
  // and what is in use.
  absl::Status Take(int64_t bytes);
  void GiveBack(int64_t bytes);
  int64_t used() const { return used_.load(); }

 private:
  const char* const limit_name_;
  const int64_t limit_;
  const std::shared_ptr<ByteBudget> parent_;
  std::atomic<int64_t> used_{0};
};

// Holds what was taken of a budget for an object, and gives it back when it is
// destroyed. Without a budget it only counts. Thread-compatible.
class BudgetCharge {
 public:
  BudgetCharge() = default;
  explicit BudgetCharge(std::shared_ptr<ByteBudget> budget)
      : budget_(std::move(budget)) {}
  static absl::StatusOr<BudgetCharge> Take(std::shared_ptr<ByteBudget> budget,
                                           int64_t bytes);
  ~BudgetCharge() { Release(); }
  BudgetCharge(BudgetCharge&& other) noexcept
      : budget_(std::move(other.budget_)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  BudgetCharge& operator=(BudgetCharge&& other) noexcept;

  // Takes more. Keeps what it has if that fails.
  absl::Status Grow(int64_t bytes);
  void Shrink(int64_t bytes);
  void Release() { Shrink(bytes_); }
  int64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<ByteBudget> budget_;
  int64_t bytes_ = 0;
};

// What is charged for an allocation, or a node of a container, beside the
// object in it: links, the allocator's header, and rounding.
inline constexpr int64_t kAllocationBytes = 64;

// Returns what is charged for an array of so many bytes: large ones are rounded
// up to pages.
inline int64_t ArrayBytes(int64_t bytes) {
  return bytes + bytes / 16 + kAllocationBytes;
}

// Returns what is charged for a string that is kept.
inline int64_t BytesOf(const std::string& text) {
  return static_cast<int64_t>(text.capacity()) + kAllocationBytes;
}

// A chunk of a tensor, which counts against a budget as long as it lives.
class ChunkBuffer {
 public:
  // What a chunk costs beside its bytes: this object, and the cell of the
  // tensor that holds it.
  static constexpr int64_t kOverheadBytes = 512;

  static absl::StatusOr<std::shared_ptr<ChunkBuffer>> Make(
      std::string bytes, uint32_t crc32c,
      const std::shared_ptr<ByteBudget>& budget);
  ChunkBuffer(const ChunkBuffer&) = delete;
  ChunkBuffer& operator=(const ChunkBuffer&) = delete;

  std::string bytes;
  uint32_t crc32c = 0;  // of bytes

 private:
  ChunkBuffer(std::string bytes_in, uint32_t crc32c_in, BudgetCharge charge)
      : bytes(std::move(bytes_in)),
        crc32c(crc32c_in),
        charge_(std::move(charge)) {}

  const BudgetCharge charge_;
};
using ChunkPtr = std::shared_ptr<const ChunkBuffer>;

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_BYTE_BUDGET_H_
