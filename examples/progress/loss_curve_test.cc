#include "examples/progress/loss_curve.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::examples {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(LossCurveTest, FallsFromTheTopLeftToTheBottomRight) {
  const LossCurve curve = {"dp=2", {{1, 5}, {50, 3}, {100, 1}}};
  const std::vector<std::string> lines =
      absl::StrSplit(DrawLossCurves({curve}, /*width=*/20, /*height=*/5), '\n');
  ASSERT_GE(lines.size(), 8u);
  EXPECT_EQ(lines[0], "  5.000 |a" + std::string(19, ' '));
  EXPECT_EQ(lines[2][9 + 10], 'a');  // in the middle of both
  EXPECT_EQ(lines[4], "  1.000 |" + std::string(19, ' ') + "a");
  EXPECT_THAT(lines[6], HasSubstr("step 100"));
  EXPECT_EQ(lines[7], "  a  dp=2");
}

TEST(LossCurveTest, TheFirstOfThoseInOnePlaceIsShown) {
  const LossCurve one = {"one", {{1, 5}, {100, 1}}};
  const LossCurve other = {"other", {{1, 5}, {100, 5}}};
  const std::string chart = DrawLossCurves({one, other}, 10, 3);
  EXPECT_THAT(chart, HasSubstr("  5.000 |a        b\n"));
  EXPECT_THAT(chart, HasSubstr("  1.000 |         a\n"));
}

TEST(LossCurveTest, LeavesOutWhatIsNotFinite) {
  const LossCurve curve = {"nan", {{1, std::nan("")}, {2, INFINITY}}};
  EXPECT_THAT(DrawLossCurves({curve}), IsEmpty());
  EXPECT_THAT(DrawLossCurves({}), IsEmpty());
  // A loss that does not change is a line.
  EXPECT_THAT(DrawLossCurves({{"flat", {{1, 2}, {2, 2}}}}),
              HasSubstr("  2.000 |"));
}

}  // namespace
}  // namespace coxswain::examples
