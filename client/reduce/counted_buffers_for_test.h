#ifndef COXSWAIN_CLIENT_REDUCE_COUNTED_BUFFERS_FOR_TEST_H_
#define COXSWAIN_CLIENT_REDUCE_COUNTED_BUFFERS_FOR_TEST_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"

namespace coxswain {

// A communicator that counts the buffers that it has made.
template <typename Base>
class CountedBuffers : public Base {
 public:
  using Base::Base;

  absl::StatusOr<std::unique_ptr<BufferOwner>> AllocateBuffer(
      int64_t count, DType dtype) override {
    COXSWAIN_ASSIGN_OR_RETURN(auto buffer, Base::AllocateBuffer(count, dtype));
    return std::make_unique<Counted>(std::move(buffer), &buffers);
  }

  std::atomic<int> buffers{0};  // alive

 private:
  class Counted : public BufferOwner {
   public:
    Counted(std::unique_ptr<BufferOwner> buffer, std::atomic<int>* count)
        : buffer_(std::move(buffer)), count_(count) {
      ++*count_;
    }
    ~Counted() override { --*count_; }
    Span span() const override { return buffer_->span(); }

   private:
    const std::unique_ptr<BufferOwner> buffer_;
    std::atomic<int>* const count_;
  };
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_COUNTED_BUFFERS_FOR_TEST_H_
