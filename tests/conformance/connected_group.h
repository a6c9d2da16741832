#ifndef COXSWAIN_TESTS_CONFORMANCE_CONNECTED_GROUP_H_
#define COXSWAIN_TESTS_CONFORMANCE_CONNECTED_GROUP_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "client/comm/memory_store.h"

namespace coxswain {

// Returns the options of a rank of a test's group.
inline CommunicatorOptions TestGroupOptions(
    int rank, int size, std::shared_ptr<RendezvousStore> store,
    absl::Duration timeout) {
  CommunicatorOptions options;
  options.id = "under-test";
  options.rank = rank;
  options.size = size;
  options.store = std::move(store);
  options.timeout = timeout;
  return options;
}

// Connects all ranks of a group in this process, each on a thread, as it
// blocks. One that fails is a failed test, and null.
inline std::vector<std::unique_ptr<Communicator>> ConnectGroup(
    int size, absl::Duration timeout,
    const std::function<absl::StatusOr<std::unique_ptr<Communicator>>(
        const CommunicatorOptions&)>& connect) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::unique_ptr<Communicator>> group(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto connected = connect(TestGroupOptions(rank, size, store, timeout));
      EXPECT_OK(connected);
      if (connected.ok()) {
        group[static_cast<size_t>(rank)] = std::move(connected).value();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return group;
}

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_CONNECTED_GROUP_H_
