#include "hooks/spec.h"

#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(SpecTest, NameAloneOrWithEmptyParentheses) {
  for (const char* text : {"allreduce", " allreduce ( ) ", "allreduce()"}) {
    ASSERT_OK_AND_ASSIGN(const Spec spec, ParseSpec(text));
    EXPECT_EQ(spec.name, "allreduce");
    EXPECT_TRUE(spec.options.empty());
    EXPECT_TRUE(spec.inner.empty());
  }
}

TEST(SpecTest, OptionsAndInnerHooksKeepTheirOrder) {
  ASSERT_OK_AND_ASSIGN(
      const Spec spec,
      ParseSpec("fp16( order = cast_then_divide, powersgd(rank=4,\tseed=-1))"));
  EXPECT_EQ(spec.name, "fp16");
  ASSERT_EQ(spec.options.size(), 1u);
  EXPECT_EQ(spec.options[0].name, "order");
  EXPECT_EQ(spec.options[0].value, "cast_then_divide");
  EXPECT_EQ(spec.options[0].position, 7u);
  ASSERT_EQ(spec.inner.size(), 1u);
  EXPECT_EQ(spec.inner[0].name, "powersgd");
  ASSERT_EQ(spec.inner[0].options.size(), 2u);
  EXPECT_EQ(spec.inner[0].options[1].value, "-1");
}

TEST(SpecTest, ErrorsShowThePositionAndWhatWasExpected) {
  struct Case {
    const char* text;
    const char* where;
    const char* what;
  };
  for (const Case& c : {
           Case{"", "character 1:", "expected a hook's name, found the end"},
           Case{"powersgd(rank=4", "character 16:", "',' or ')'"},
           Case{"powersgd(rank=)", "character 15:", "expected a value"},
           Case{"powersgd(rank=4,)", "character 17:", "option or a hook"},
           Case{"powersgd rank", "character 10:", "found 'r'"},
           Case{"fp16(powersgd(rank=4)", "character 22:", "found the end"},
           Case{"allreduce)", "character 10:", "found ')'"},
           Case{"a(b==1)", "character 5:", "found '='"},
           Case{"a(b=\x01)", "character 5:", "\\x01"},
       }) {
    EXPECT_THAT(ParseSpec(c.text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(c.where), HasSubstr(c.what))))
        << c.text;
  }
}

TEST(SpecTest, LengthAndDepthAreLimited) {
  EXPECT_OK(ParseSpec(std::string(kMaxSpecLength, 'a')));
  EXPECT_THAT(ParseSpec(std::string(kMaxSpecLength + 1, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1025")));
  EXPECT_OK(ParseSpec("a(b(c(d(x=1))))"));
  EXPECT_THAT(ParseSpec("a(b(c(d(e))))"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("more than 4"), HasSubstr("9:"))));
}

}  // namespace
}  // namespace coxswain
