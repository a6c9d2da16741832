#include "base/peer_text.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace coxswain {
namespace {

TEST(PeerTextTest, NothingOfALineCommandsATerminal) {
  EXPECT_EQ(OneLine("a\nb\tc\x1b[2Jd\x7f"), "a?b?c?[2Jd?");
  // U+009B begins a command as ESC [ does; U+00A0 and others do not.
  EXPECT_EQ(OneLine("a\xc2\x9b"
                    "2Jb"),
            "a?2Jb");
  EXPECT_EQ(OneLine("\xc2\xa0 \xc3\x9b \xe2\x82\xac"),
            "\xc2\xa0 \xc3\x9b \xe2\x82\xac");
  EXPECT_EQ(OneLine("\xc2"), "\xc2");
}

TEST(PeerTextTest, FindsAnyControlCharacter) {
  EXPECT_FALSE(HasControls(""));
  EXPECT_FALSE(HasControls("powersgd(rank=4) \xc3\xa9"));
  EXPECT_TRUE(HasControls("a\n"));
  EXPECT_TRUE(HasControls("\x1b[31m"));
  EXPECT_TRUE(HasControls("\xc2\x85"));
}

TEST(PeerTextTest, ALetterIsNotCutInHalf) {
  EXPECT_EQ(Shorten("abcdef", 6), "abcdef");
  EXPECT_EQ(Shorten("ab\xc3\xa9"
                    "def",
                    6),
            "ab...");
}

constexpr char kBad[] = "\xef\xbf\xbd";

TEST(Utf8Test, ValidTextStays) {
  for (const std::string text :
       {"", "plain", "J\xc3\xbcrgen", "\xe2\x82\xac", "\xf0\x9f\x9a\xa3",
        "\xed\x9f\xbf\xee\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(ValidUtf8(text), text);
  }
}

TEST(Utf8Test, EachOtherByteIsReplaced) {
  EXPECT_EQ(ValidUtf8("a\xff z"), std::string("a") + kBad + " z");
  EXPECT_EQ(ValidUtf8("\xc3"), kBad) << "cut";
  EXPECT_EQ(ValidUtf8("\xe2\x82"), std::string(kBad) + kBad) << "cut";
  EXPECT_EQ(ValidUtf8("\x80"), kBad) << "no beginning";
  EXPECT_EQ(ValidUtf8("\xc0\xaf"), std::string(kBad) + kBad) << "too long";
}

// Whatever the bytes, the result is text for a parser that checks.
TEST(Utf8Test, TheResultIsAlwaysValid) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      std::string bytes = {static_cast<char>(first), static_cast<char>(second),
                           '\x80', '\xbf', 'z'};
      const std::string valid = ValidUtf8(bytes);
      // Throws if it is no UTF-8.
      EXPECT_NO_THROW(nlohmann::json(valid).dump()) << first << " " << second;
      EXPECT_EQ(ValidUtf8(valid), valid);
      EXPECT_EQ(valid.back(), 'z');
    }
  }
}

}  // namespace
}  // namespace coxswain
