#include "schedule/memory/zero_limits.h"

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::memory::zero_limits_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ZeroLimitsTest, StagesBelowThreeAreThere) {
  for (const int zero : {0, 1, 2}) EXPECT_OK(CheckZeroStage(zero));
  EXPECT_THAT(CheckZeroStage(3),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("parameters stay whole on each rank"),
                             HasSubstr("pp and tp divide"))));
  for (const int zero : {-1, 4}) {
    EXPECT_THAT(CheckZeroStage(zero),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("zero is 0, 1")));
  }
}

TEST(ZeroLimitsTest, ARefusalHasWhatIsHeldAndSent) {
  WindowGradients gradients;
  gradients.rank = "pp 1";
  gradients.bytes = int64_t{400} << 20;
  gradients.bucket = int64_t{25} << 20;
  gradients.sharers = 4;
  gradients.micro_batches = 8;
  EXPECT_THAT(
      RefuseZeroOfWindow(gradients, "force_zero"),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          AllOf(HasSubstr("pp 1 holds 400.0 MiB of them with zero=1"),
                HasSubstr("a slice of 100.0 MiB and up to 75.0 MiB of buckets"),
                HasSubstr("each of 8 micro-batches in place of their sum would "
                          "send 7 x 300.0 MiB more a step"),
                HasSubstr("or force_zero, which runs"))));
}

TEST(ZeroLimitsTest, ARefusalBeforeTheRanksAreKnownHasWhatIs) {
  WindowGradients gradients;
  gradients.rank = "pp 0";
  gradients.bytes = 5000;
  gradients.bucket = 4000;
  EXPECT_THAT(RefuseZeroOfWindow(gradients, "force_zero"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("and a slice and up to 5000 bytes of "
                                       "buckets"),
                             HasSubstr("0 x nearly 5000 bytes"))));
}

}  // namespace
}  // namespace coxswain::memory::zero_limits_test
