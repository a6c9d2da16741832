#include "capi/call.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/no_threads_for_test.h"
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

TEST(CallTest, FailsWhereNoThreadCanBeStarted) {
  const auto release = std::make_shared<CancelSignal>();
  std::vector<cx_call> calls;
  absl::Status status;
  {
    const NoThreads none;
    // Threads of earlier calls may be idle, and take the first.
    for (int i = 0; i < 100 && status.ok(); ++i) {
      Work work;
      work.run = [release] {
        release->WaitFor(absl::Seconds(30));
        return absl::OkStatus();
      };
      cx_call call = 0;
      const Answer answer = Do(&call, std::move(work));
      if (answer.again) calls.push_back(call);
      status = answer.status;
    }
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  release->Raise(absl::CancelledError("the test ends"));
  for (cx_call& call : calls) {
    while (cx_wait(&call) == CX_AGAIN) {
    }
  }
  // It is not waited for.
  const absl::Duration limit = absl::Seconds(20);
  const absl::Time begun = Clock::Real()->Now();
  AwaitHelpers(limit);
  EXPECT_LT(Clock::Real()->Now() - begun, limit);
}

}  // namespace
}  // namespace coxswain::capi
