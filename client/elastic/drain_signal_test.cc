#include "client/elastic/drain_signal.h"

#include <csignal>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;

TEST(DrainSignalTest, TheFirstOneIsARequestAndTheSecondEndsTheProcess) {
  ASSERT_OK(DrainOnSignal());
  EXPECT_FALSE(DrainSignalled());
  std::raise(SIGTERM);
  EXPECT_TRUE(DrainSignalled());
  EXPECT_EXIT(std::raise(SIGTERM), ::testing::KilledBySignal(SIGTERM), "");
}

TEST(DrainSignalTest, WhatCannotBeCaughtIsRefused) {
  EXPECT_THAT(DrainOnSignal(SIGKILL),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("signal 9 cannot be caught")));
}

}  // namespace
}  // namespace coxswain
