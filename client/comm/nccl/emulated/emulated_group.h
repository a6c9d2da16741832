#ifndef COXSWAIN_CLIENT_COMM_NCCL_EMULATED_EMULATED_GROUP_H_
#define COXSWAIN_CLIENT_COMM_NCCL_EMULATED_EMULATED_GROUP_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/emulated/emulated_nccl.h"
#include "client/comm/nccl/nccl_communicator.h"
#include "client/device/emulated/emulated_runtime.h"

namespace coxswain {

// Emulated GPUs, one a rank, and the emulated NCCL between them: what tests of
// the device's path need, of hooks and of the reducer too. Outlives the
// communicators made with it.
class EmulatedGpus {
 public:
  // GPU i is rank i's, and has the index i.
  explicit EmulatedGpus(int count, int nccl_version = 22809)
      : nccl_(nccl_version) {
    for (int index = 0; index < count; ++index) {
      runtimes_.push_back(std::make_unique<EmulatedRuntime>(index));
    }
  }

  int count() const { return static_cast<int>(runtimes_.size()); }
  EmulatedNccl& nccl() { return nccl_; }
  EmulatedRuntime& runtime(int index) {
    return *runtimes_[static_cast<size_t>(index)];
  }

  // A rank of a group, on GPU options.rank.
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(
      const CommunicatorOptions& options, Clock* clock = Clock::Real()) {
    CommunicatorOptions placed = options;
    placed.device.kind = Device::Kind::kCuda;
    placed.device.index = options.rank;
    return MakeNcclCommunicator(placed, &nccl_, &runtime(options.rank), clock);
  }
  // All ranks of a group of `size`, at most count(). One that fails is a failed
  // test, and null.
  std::vector<std::unique_ptr<Communicator>> ConnectAll(
      int size, absl::Duration timeout, Clock* clock = Clock::Real()) {
    const auto store = std::make_shared<MemoryStore>();
    std::vector<std::unique_ptr<Communicator>> group(static_cast<size_t>(size));
    // Each blocks until all are there.
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        CommunicatorOptions options;
        options.id = "under-test";
        options.rank = rank;
        options.size = size;
        options.store = store;
        options.timeout = timeout;
        auto connected = Connect(options, clock);
        EXPECT_OK(connected);
        if (!connected.ok()) return;
        group[static_cast<size_t>(rank)] = *std::move(connected);
      });
    }
    for (auto& thread : threads) thread.join();
    return group;
  }

 private:
  // The streams' threads are within NCCL until the runtimes have ended.
  EmulatedNccl nccl_;
  std::vector<std::unique_ptr<EmulatedRuntime>> runtimes_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_EMULATED_EMULATED_GROUP_H_
