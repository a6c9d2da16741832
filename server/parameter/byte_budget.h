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

// How much memory peers may make the room hold. Thread-safe.
class ByteBudget {
 public:
  // `limit_name` is for messages. What is taken here is taken from `parent`
  // too, which may be null.
  ByteBudget(const char* limit_name, int64_t limit,
             std::shared_ptr<ByteBudget> parent = nullptr)
      : limit_name_(limit_name), limit_(limit), parent_(std::move(parent)) {}

  // RESOURCE_EXHAUSTED names the limit that it would pass.
  absl::Status Take(int64_t bytes);
  void GiveBack(int64_t bytes);
  int64_t used() const { return used_.load(); }

 private:
  const char* const limit_name_;
  const int64_t limit_;
  const std::shared_ptr<ByteBudget> parent_;
  std::atomic<int64_t> used_{0};
};

// A chunk of a tensor, which counts against a budget as long as it lives.
class ChunkBuffer {
 public:
  static absl::StatusOr<std::shared_ptr<ChunkBuffer>> Make(
      std::string bytes, uint32_t crc32c,
      const std::shared_ptr<ByteBudget>& budget);
  ~ChunkBuffer();
  ChunkBuffer(const ChunkBuffer&) = delete;
  ChunkBuffer& operator=(const ChunkBuffer&) = delete;

  std::string bytes;
  uint32_t crc32c = 0;  // of bytes

 private:
  ChunkBuffer(std::string bytes_in, uint32_t crc32c_in,
              std::shared_ptr<ByteBudget> budget);

  const std::shared_ptr<ByteBudget> budget_;
  const int64_t taken_;
};
using ChunkPtr = std::shared_ptr<const ChunkBuffer>;

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_BYTE_BUDGET_H_
