#include "base/logging.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

std::string Logged(const std::string& value) {
  testing::internal::CaptureStderr();
  LogInfo("event", {{"key", value}});
  return testing::internal::GetCapturedStderr();
}

TEST(LoggingTest, PlainValuesAreNotQuoted) {
  EXPECT_THAT(Logged("host-a/0"), HasSubstr("event key=host-a/0\n"));
  EXPECT_THAT(Logged("'mnist'"), HasSubstr("key='mnist'\n"));
}

TEST(LoggingTest, OnlyQuotesBackslashesAndControlCharactersAreEscaped) {
  EXPECT_THAT(Logged("job 'mnist' of J\xc3\xbcrgen"),
              HasSubstr("key=\"job 'mnist' of J\xc3\xbcrgen\"\n"));
  EXPECT_THAT(Logged(R"(say "a\b")"), HasSubstr(R"(key="say \"a\\b\"")"));
  EXPECT_THAT(Logged("a\nb\x01"), HasSubstr("key=\"a\\nb\\001\"\n"));
}

}  // namespace
}  // namespace coxswain
