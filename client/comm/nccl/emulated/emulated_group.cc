#include "client/comm/nccl/emulated/emulated_group.h"

#include <thread>

#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/nccl_communicator.h"

namespace coxswain {

EmulatedGpus::EmulatedGpus(int count, int nccl_version) : nccl_(nccl_version) {
  for (int index = 0; index < count; ++index) {
    runtimes_.push_back(std::make_unique<EmulatedRuntime>(index));
  }
}

absl::StatusOr<std::unique_ptr<Communicator>> EmulatedGpus::Connect(
    const CommunicatorOptions& options, Clock* clock) {
  CommunicatorOptions placed = options;
  placed.device.kind = Device::Kind::kCuda;
  placed.device.index = options.rank;
  return MakeNcclCommunicator(placed, &nccl_, &runtime(options.rank), clock);
}

std::vector<std::unique_ptr<Communicator>> EmulatedGpus::ConnectAll(
    int size, absl::Duration timeout, Clock* clock) {
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

}  // namespace coxswain
