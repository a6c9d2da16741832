#include "tests/integration/counted_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <map>
#include <utility>

namespace coxswain::torch {
namespace {

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) const override {
    if (bytes == 0) return {nullptr, nullptr, &Free, c10::kCPU};
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) std::abort();
    if (OwnLedger() != nullptr) {
      const auto size = static_cast<int64_t>(bytes);
      OwnLedger()->Add(size);
      MutexLock lock(&mutex_);
      entries_[memory] = {OwnLedger(), size};
    }
    return {memory, memory, &Free, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }

  static CountingAllocator& Get() {
    static auto* const allocator = new CountingAllocator;
    return *allocator;
  }

 private:
  struct Entry {
    std::shared_ptr<Ledger> ledger;
    int64_t bytes = 0;
  };

  static void Free(void* memory) {
    Get().Leave(memory);
    std::free(memory);
  }
  void Leave(void* memory) {
    MutexLock lock(&mutex_);
    const auto entry = entries_.find(memory);
    if (entry == entries_.end()) return;
    entry->second.ledger->Add(-entry->second.bytes);
    entries_.erase(entry);
  }

  mutable Mutex mutex_;
  mutable std::map<void*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

class CountedBuffer : public BufferOwner {
 public:
  CountedBuffer(std::unique_ptr<BufferOwner> inner,
                std::shared_ptr<Ledger> ledger)
      : inner_(std::move(inner)), ledger_(std::move(ledger)) {
    ledger_->Add(inner_->span().bytes());
  }
  ~CountedBuffer() override { ledger_->Add(-inner_->span().bytes()); }
  Span span() const override { return inner_->span(); }

 private:
  const std::unique_ptr<BufferOwner> inner_;
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace

std::shared_ptr<Ledger>& OwnLedger() {
  thread_local std::shared_ptr<Ledger> ledger;
  return ledger;
}

CountedTensors::CountedTensors() : before_(c10::GetCPUAllocator()) {
  c10::SetCPUAllocator(&CountingAllocator::Get(), 200);
}

CountedTensors::~CountedTensors() { c10::SetCPUAllocator(before_, 200); }

CountingCommunicator::CountingCommunicator(std::unique_ptr<Communicator> inner,
                                           std::shared_ptr<Ledger> ledger)
    : HeldCommunicator(std::move(inner)), ledger_(std::move(ledger)) {
  Open();
}

absl::StatusOr<std::unique_ptr<BufferOwner>>
CountingCommunicator::AllocateBuffer(int64_t count, DType dtype) {
  auto made = HeldCommunicator::AllocateBuffer(count, dtype);
  if (!made.ok()) return made.status();
  return std::make_unique<CountedBuffer>(*std::move(made), ledger_);
}

}  // namespace coxswain::torch
