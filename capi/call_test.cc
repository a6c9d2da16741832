#include "capi/call.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/wait_count.h"
#include "capi/coxswain.h"
#include "gtest/gtest.h"

namespace coxswain::capi {
namespace {

// Returns whether a wait within a call counts: on this thread, or on one of the
// library's.
bool Counts(bool on_this_thread) {
  const auto counts = std::make_shared<bool>(false);
  Work work;
  work.run = [counts] {
    WaitCount count;
    const WaitCount::Scope waits(&count);
    *counts = count.any();
    return absl::OkStatus();
  };
  cx_call call = 0;
  Do(on_this_thread ? nullptr : &call, std::move(work));
  while (call != 0) cx_wait(&call);
  return *counts;
}

TEST(CallTest, WaitsOfAThreadInTheBackgroundDoNotCount) {
  for (const bool on_this_thread : {true, false}) {
    EXPECT_TRUE(Counts(on_this_thread));
    EXPECT_EQ(cx_set_background(1), 0);
    EXPECT_FALSE(Counts(on_this_thread));
    EXPECT_EQ(cx_set_background(7), 1);
    EXPECT_FALSE(Counts(on_this_thread));
    EXPECT_EQ(cx_set_background(0), 1);
    EXPECT_TRUE(Counts(on_this_thread));
    EXPECT_EQ(cx_set_background(0), 0);
  }
}

}  // namespace
}  // namespace coxswain::capi
