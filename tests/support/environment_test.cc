#include "tests/support/environment.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr char kName[] = "COXSWAIN_ENVIRONMENT_TEST";

class EnvironmentTest : public testing::Test {
 protected:
  ~EnvironmentTest() override { unsetenv(kName); }
};

TEST_F(EnvironmentTest, NumberThatIsNotSetIsTheOtherOne) {
  EXPECT_EQ(FromEnvironment(kName, 7), 7);
}

TEST_F(EnvironmentTest, NumberIsRead) {
  setenv(kName, "12", 1);
  EXPECT_EQ(FromEnvironment(kName, 7), 12);
}

TEST_F(EnvironmentTest, TextThatIsNoNumberEndsTheProcess) {
  setenv(kName, "many", 1);
  EXPECT_EXIT(FromEnvironment(kName, 7), testing::ExitedWithCode(2),
              "COXSWAIN_ENVIRONMENT_TEST must be a whole number, not 'many'");
}

}  // namespace
}  // namespace coxswain
