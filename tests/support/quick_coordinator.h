#ifndef COXSWAIN_TESTS_SUPPORT_QUICK_COORDINATOR_H_
#define COXSWAIN_TESTS_SUPPORT_QUICK_COORDINATOR_H_

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/coordinator.h"

namespace coxswain {

// Returns the options of a coordinator that waits only briefly for members that
// may still come, with a folder of the running test's own.
inline server::CoordinatorOptions QuickCoordinator() {
  server::CoordinatorOptions options;
  options.state_dir = absl::StrCat(
      ::testing::TempDir(), "/coordinator-", getpid(), "-",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  options.tick_interval = absl::Milliseconds(10);
  options.membership.last_call = absl::Milliseconds(200);
  options.membership.growth_settle = absl::Milliseconds(50);
  options.membership.growth_min_age = absl::Milliseconds(100);
  return options;
}

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_QUICK_COORDINATOR_H_
