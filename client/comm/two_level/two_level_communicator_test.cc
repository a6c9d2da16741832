#include "client/comm/two_level/two_level_communicator.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/gloo/gloo_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

// Two ranks on each host, or all on one where that does not come out even.
Hosts HostsOf(int size) {
  std::vector<int> host_of;
  for (int rank = 0; rank < size; ++rank) {
    host_of.push_back(size % 2 == 0 ? rank / 2 : 0);
  }
  return Hosts(host_of);
}

CommunicatorOptions Part(CommunicatorOptions group, const std::string& id,
                         int rank, size_t size) {
  group.id = id;
  group.rank = rank;
  group.size = static_cast<int>(size);
  return group;
}

absl::StatusOr<std::unique_ptr<Communicator>> ConnectTwoLevel(
    const CommunicatorOptions& group) {
  TwoLevelParts parts = {nullptr, nullptr, nullptr, HostsOf(group.size)};
  const int host = parts.hosts.host_of(group.rank);
  const int place = parts.hosts.local_rank(group.rank);
  COXSWAIN_ASSIGN_OR_RETURN(
      parts.local, ConnectShm(Part(group, "host-" + std::to_string(host), place,
                                   parts.hosts.ranks(host).size())));
  COXSWAIN_ASSIGN_OR_RETURN(
      parts.across,
      ConnectGloo(Part(group, "place-" + std::to_string(place), host,
                       static_cast<size_t>(parts.hosts.count()))));
  COXSWAIN_ASSIGN_OR_RETURN(parts.flat, ConnectGloo(group));
  return MakeTwoLevel(std::move(parts), group.timeout);
}

std::vector<std::unique_ptr<Communicator>> MakeGroup(int size,
                                                     absl::Duration timeout) {
  return ConnectGroup(size, timeout, ConnectTwoLevel);
}

CommunicatorCase TwoLevelCase() {
  CommunicatorCase result;
  result.name = "TwoLevel";
  result.make_group = MakeGroup;
  result.sizes = {2, 4};
  result.has_wire = true;
  return result;
}

INSTANTIATE_TEST_SUITE_P(Backends, CommunicatorConformance,
                         testing::Values(TwoLevelCase()), CaseName);

TEST(TwoLevelTest, LargeSumsAreRightWhateverTheirCount) {
  const auto group = MakeGroup(4, absl::Minutes(1));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&group, rank] {
      Communicator& comm = *group[static_cast<size_t>(rank)];
      // Several pieces, and a rest that does not divide by the local ranks.
      for (const int64_t count : {1, 2, 3, 1000001, 3 * (1 << 20) + 1}) {
        ASSERT_OK_AND_ASSIGN(const auto buffer,
                             comm.AllocateBuffer(count, DType::kFloat32));
        float* const data = static_cast<float*>(buffer->span().data);
        for (int64_t i = 0; i < count; ++i) {
          data[i] = static_cast<float>((i + rank) % 13);
        }
        ASSERT_OK(comm.AllReduce(buffer->span())->Wait(absl::Minutes(1)));
        for (int64_t i = 0; i < count; ++i) {
          const int64_t sum =
              i % 13 + (i + 1) % 13 + (i + 2) % 13 + (i + 3) % 13;
          ASSERT_EQ(data[i], static_cast<float>(sum)) << i << " of " << count;
        }
        ASSERT_OK(comm.Barrier()->Wait(absl::Minutes(1)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(TwoLevelTest, AGroupOfOneHostSharesMemory) {
  const auto group = MakeGroup(4, absl::Minutes(1));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&group, rank] {
      Communicator& comm = *group[static_cast<size_t>(rank)];
      const std::vector<int> host =
          rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3};
      ASSERT_OK_AND_ASSIGN(const auto local, comm.Split(host));
      EXPECT_EQ(local->backend(), "shm");
      const std::vector<int> place =
          rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
      ASSERT_OK_AND_ASSIGN(const auto across, comm.Split(place));
      EXPECT_EQ(across->backend(), "gloo");
      ASSERT_OK(across->Barrier()->Wait(absl::Minutes(1)));
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace coxswain
