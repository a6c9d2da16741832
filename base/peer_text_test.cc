#include "base/peer_text.h"

#include "gtest/gtest.h"

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

TEST(PeerTextTest, SaysWhetherThereIsAnyControlCharacter) {
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

}  // namespace
}  // namespace coxswain
