#include "client/device/cuda/devices.h"

#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "client/device/emulated/emulated_runtime.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(DevicesTest, NamesTheReasonIfThereAreNone) {
  std::string why = "untouched";
  const int count = DeviceCount(&why);
  EXPECT_EQ(count, DeviceCount());
  if (count > 0) {
    EXPECT_EQ(why, "untouched");
    return;
  }
#ifdef COXSWAIN_CUDA
  // No driver, or none that it shows.
  EXPECT_THAT(why, AnyOf(HasSubstr("driver"), HasSubstr("visible")));
  EXPECT_THAT(GetDevice(0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(why)));
#else
  EXPECT_THAT(why, HasSubstr("without CUDA"));
  EXPECT_THAT(GetDevice(0),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(why)));
#endif
}

TEST(DevicesTest, WhatIsNotThereIsNamed) {
  for (const int index : {-1, 1000}) {
    const auto device = GetDevice(index);
    EXPECT_FALSE(device.ok());
    EXPECT_THAT(device.status().message(), HasSubstr(std::to_string(index)));
  }
}

TEST(DevicesTest, UsesADeviceOfTheTest) {
  const int before = DeviceCount();
  auto runtime = std::make_unique<EmulatedRuntime>(100);
  DeviceRuntime* const given = runtime.get();
  UseDevice(100, std::move(runtime));
  EXPECT_EQ(GetDevice(100).value_or(nullptr), given);
  EXPECT_EQ(DeviceCount(), 101);
  UseDevice(100, nullptr);
  EXPECT_FALSE(GetDevice(100).ok());
  EXPECT_EQ(DeviceCount(), before);
}

}  // namespace
}  // namespace coxswain
