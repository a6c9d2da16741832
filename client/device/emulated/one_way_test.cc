#include "client/device/emulated/emulated_stream.h"

#include <thread>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(OneWayTest, AWaiterSeesWhatWasDoneBefore) {
  OneWay there;
  OneWay back;
  int value = 0;
  std::thread other([&] {
    there.AwaitBeyond(0);
    ++value;
    back.Advance();
  });
  value = 1;
  there.Advance();
  EXPECT_TRUE(back.AwaitBeyond(0, absl::Minutes(1)));
  EXPECT_EQ(value, 2);
  other.join();
}

TEST(OneWayTest, AWaitMayBeOverAtOnce) {
  OneWay number;
  EXPECT_FALSE(number.AwaitBeyond(0, absl::ZeroDuration()));
  EXPECT_FALSE(number.AwaitBeyond(0, absl::Milliseconds(1)));
  number.Advance();
  EXPECT_EQ(number.value(), 1u);
  EXPECT_TRUE(number.AwaitBeyond(0, absl::ZeroDuration()));
}

}  // namespace
}  // namespace coxswain
