#include "base/start_thread.h"

#include <thread>

#include "base/no_threads_for_test.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

TEST(StartThreadTest, ItRuns) {
  bool ran = false;
  ASSERT_OK_AND_ASSIGN(std::thread thread, StartThread([&] { ran = true; }));
  thread.join();
  EXPECT_TRUE(ran);
}

TEST(StartThreadTest, IsAnErrorWhereThereIsNone) {
  bool ran = false;
  {
    const NoThreads none;
    EXPECT_THAT(StartThread([&] { ran = true; }),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("cannot start a thread")));
  }
  EXPECT_FALSE(ran);
  ASSERT_OK_AND_ASSIGN(std::thread thread, StartThread([&] { ran = true; }));
  thread.join();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace coxswain
