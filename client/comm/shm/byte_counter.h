#ifndef COXSWAIN_CLIENT_COMM_SHM_BYTE_COUNTER_H_
#define COXSWAIN_CLIENT_COMM_SHM_BYTE_COUNTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace coxswain {

// Bytes that a communicator moved; those of one that was split off count for
// its parent too. Thread-safe.
class ByteCounter {
 public:
  explicit ByteCounter(std::shared_ptr<ByteCounter> parent)
      : parent_(std::move(parent)) {}

  void Add(int64_t bytes) {
    for (ByteCounter* one = this; one != nullptr; one = one->parent_.get()) {
      one->bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
  }
  int64_t bytes() const { return bytes_.load(); }

 private:
  const std::shared_ptr<ByteCounter> parent_;
  std::atomic<int64_t> bytes_{0};
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_BYTE_COUNTER_H_
