// The conformance suite of communicators over the real NCCL, with as many ranks
// as this machine has GPUs, each a thread: docs/gpu.md describes how to copy it
// there. Without a GPU no case runs, which the one test left reports.
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/nccl_communicator.h"
#include "client/device/cuda/devices.h"
#include "gtest/gtest.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/support/in_threads.h"

namespace coxswain {
namespace {

constexpr int kMostRanks = 4;

std::vector<std::unique_ptr<Communicator>> ConnectAll(int size,
                                                      absl::Duration timeout) {
  static int groups = 0;
  const auto store = std::make_shared<MemoryStore>();
  const std::string id = absl::StrCat("conformance/", ++groups);
  std::vector<std::unique_ptr<Communicator>> group(size);
  InThreads(size, [&](int rank) {
    CommunicatorOptions options;
    options.id = id;
    options.rank = rank;
    options.size = size;
    options.store = store;
    options.device = {Device::Kind::kCuda, rank};
    options.timeout = timeout;
    auto connected = ConnectNccl(options);
    EXPECT_OK(connected);
    if (connected.ok()) group[rank] = *std::move(connected);
  });
  return group;
}

std::vector<CommunicatorCase> Cases() {
  const int ranks = std::min(DeviceCount(), kMostRanks);
  if (ranks == 0) return {};
  CommunicatorCase nccl;
  nccl.name = "Nccl";
  nccl.make_group = ConnectAll;
  nccl.sizes.clear();
  for (int size = 1; size <= ranks; ++size) nccl.sizes.push_back(size);
  nccl.messages = false;
  nccl.compares = false;  // docs/communicators.md
  nccl.has_wire = true;
  nccl.elsewhere.index = 99;
  return {nccl};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformance);
INSTANTIATE_TEST_SUITE_P(Real, CommunicatorConformance,
                         testing::ValuesIn(Cases()), CaseName);

TEST(RealNcclTest, ReportsWithHowManyGpusItRan) {
  std::string why_none;
  const int count = DeviceCount(&why_none);
  if (count == 0) GTEST_SKIP() << "no GPU: " << why_none;
  std::cout << "tried with 1 to " << std::min(count, kMostRanks) << " ranks\n";
}

}  // namespace
}  // namespace coxswain
