#include "client/comm/registry.h"

#include <memory>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "client/comm/memory_store.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(RegistryTest, AnUnknownNameListsTheValidOnes) {
  EXPECT_THAT(
      Connect("mpi", CommunicatorOptions()),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          AllOf(HasSubstr("'mpi'"),
                HasSubstr("auto, gloo, loopback, parameter_server, shm"))));
}

TEST(RegistryTest, AutoTakesLoopbackForOneRank) {
  ASSERT_OK_AND_ASSIGN(auto comm, Connect("auto", CommunicatorOptions()));
  EXPECT_EQ(comm->backend(), "loopback");
}

TEST(RegistryTest, ANameIsTakenAtItsWord) {
  CommunicatorOptions options;
  options.store = std::make_shared<MemoryStore>();
  ASSERT_OK_AND_ASSIGN(auto comm, Connect("gloo", options));
  EXPECT_EQ(comm->backend(), "gloo");
}

TEST(RegistryTest, AutoTakesGlooForMore) {
  CommunicatorOptions options;
  options.size = 2;
  EXPECT_THAT(Connect("auto", options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gloo")));
}

TEST(RegistryTest, AutoSharesMemoryWithinAHost) {
  auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&store, rank] {
      CommunicatorOptions options;
      options.rank = rank;
      options.size = 2;
      options.store = store;
      options.timeout = absl::Seconds(20);
      ASSERT_OK_AND_ASSIGN(const auto comm, Connect("auto", options));
      EXPECT_EQ(comm->backend(), "shm");
      EXPECT_OK(comm->Barrier()->Wait(absl::Seconds(20)));
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace coxswain
