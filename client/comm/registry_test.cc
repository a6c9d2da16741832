#include "client/comm/registry.h"

#include "base/status_matchers.h"
#include "client/comm/memory_store.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(RegistryTest, AnUnknownNameListsTheValidOnes) {
  EXPECT_THAT(
      Connect("mpi", CommunicatorOptions()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("'mpi'"), HasSubstr("auto, gloo, loopback"))));
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

}  // namespace
}  // namespace coxswain
