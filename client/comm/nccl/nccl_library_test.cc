#include "client/comm/nccl/nccl_library.h"

#include <cstdlib>
#include <memory>

#include "base/status_matchers.h"
#include "client/comm/memory_store.h"
#include "client/comm/nccl/nccl_communicator.h"
#include "client/comm/nccl/nccl_status.h"
#include "client/device/cuda/devices.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// In this order: what LoadNccl has found it keeps.

TEST(NcclLibraryTest, ALibraryThatIsNotThereIsNamed) {
  setenv("COXSWAIN_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  const auto api = LoadNccl();
  unsetenv("COXSWAIN_NCCL_LIBRARY");
#ifdef COXSWAIN_NCCL
  EXPECT_THAT(api, StatusIs(absl::StatusCode::kNotFound,
                            AllOf(HasSubstr("/nowhere/libnccl.so.2"),
                                  HasSubstr("COXSWAIN_NCCL_LIBRARY"))));
#else
  EXPECT_THAT(api, StatusIs(absl::StatusCode::kUnimplemented,
                            HasSubstr("this build has no NCCL")));
#endif
}

TEST(NcclLibraryTest, ALibraryThatIsAnotherIsRefused) {
  setenv("COXSWAIN_NCCL_LIBRARY", "libc.so.6", 1);
  const auto api = LoadNccl();
  unsetenv("COXSWAIN_NCCL_LIBRARY");
#ifdef COXSWAIN_NCCL
  EXPECT_THAT(api, StatusIs(absl::StatusCode::kFailedPrecondition,
                            AllOf(HasSubstr("libc.so.6"),
                                  HasSubstr("it lacks ncclGetVersion"))));
#else
  EXPECT_FALSE(api.ok());
#endif
}

TEST(NcclLibraryTest, TheInstalledOneIsFoundWithItsFeatures) {
#ifdef COXSWAIN_NCCL
  ASSERT_OK_AND_ASSIGN(NcclApi* const api, LoadNccl());
  EXPECT_GE(api->version(), 21800);
  EXPECT_EQ(api->has(NcclFeature::kInitRankScalable), api->version() >= 22304);
  EXPECT_EQ(api->has(NcclFeature::kRegister), api->version() >= 21901);
  EXPECT_EQ(api->has(NcclFeature::kMemAlloc), api->version() >= 21901);
  EXPECT_EQ(*LoadNccl(), api);
#else
  GTEST_SKIP() << "built without NCCL";
#endif
}

TEST(NcclLibraryTest, ConnectingWithoutAGpuIsAnErrorThatNamesTheReason) {
  if (DeviceCount() > 0) GTEST_SKIP() << "there is one";
  CommunicatorOptions options;
  options.id = "under-test";
  options.store = std::make_shared<MemoryStore>();
  options.device = {Device::Kind::kCuda, 0};
  EXPECT_THAT(ConnectNccl(options),
              AnyOf(StatusIs(absl::StatusCode::kNotFound,
                             HasSubstr("communicator 'under-test', rank 0")),
                    StatusIs(absl::StatusCode::kUnimplemented,
                             HasSubstr("communicator 'under-test', rank 0"))));
}

TEST(NcclStatusTest, VersionsAreReadable) {
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(21805), "2.18.5");
}

}  // namespace
}  // namespace coxswain
