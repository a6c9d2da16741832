#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "client/device/cuda/devices.h"
#include "gtest/gtest.h"
#include "tests/conformance/device_conformance.h"

namespace coxswain {
namespace {

// Null without a GPU.
DeviceRuntime* First() {
  static DeviceRuntime* const runtime = GetDevice(0).value_or(nullptr);
  return runtime;
}

std::vector<DeviceCase> Cases() {
  std::vector<DeviceCase> cases;
  if (First() != nullptr) cases.push_back(DeviceCase{"cuda", First});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceConformance, testing::ValuesIn(Cases()));

TEST(CudaRuntimeGpuTest, AGpuIsThere) {
  std::string why;
  if (DeviceCount(&why) == 0) {
    GTEST_SKIP() << "NOTHING HERE WAS TESTED ON A GPU: " << why;
  }
  EXPECT_OK(GetDevice(0));
}

}  // namespace
}  // namespace coxswain
