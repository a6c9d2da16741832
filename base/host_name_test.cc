#include "base/host_name.h"

#include <sys/utsname.h>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

TEST(HostNameTest, IsTheOneOfTheSystem) {
  utsname system{};
  ASSERT_EQ(uname(&system), 0);
  EXPECT_EQ(HostName(), system.nodename);
}

}  // namespace
}  // namespace coxswain
