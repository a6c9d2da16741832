#include "cli/launch/line_prefixer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

std::string Prefixed(LinePrefixer prefixer,
                     const std::vector<std::string>& pieces) {
  std::string out;
  for (const std::string& piece : pieces) prefixer.Append(piece, &out);
  prefixer.Finish(&out);
  return out;
}

TEST(LinePrefixerTest, EveryLineGetsThePrefix) {
  EXPECT_EQ(Prefixed(LinePrefixer("[a/0] "), {"one\ntwo\n\nthree\n"}),
            "[a/0] one\n[a/0] two\n[a/0] \n[a/0] three\n");
}

TEST(LinePrefixerTest, LinesAreWholeHoweverTheyArrive) {
  LinePrefixer prefixer("> ");
  std::string out;
  prefixer.Append("o", &out);
  prefixer.Append("ne", &out);
  EXPECT_EQ(out, "");
  prefixer.Append("\ntw", &out);
  EXPECT_EQ(out, "> one\n");
  prefixer.Append("o\n", &out);
  EXPECT_EQ(out, "> one\n> two\n");
}

TEST(LinePrefixerTest, ALastLineWithoutItsEndIsNotLost) {
  EXPECT_EQ(Prefixed(LinePrefixer("> "), {"one\ntwo"}), "> one\n> two\n");
  EXPECT_EQ(Prefixed(LinePrefixer("> "), {"one\n"}), "> one\n");
  EXPECT_EQ(Prefixed(LinePrefixer("> "), {}), "");
}

TEST(LinePrefixerTest, LongLinesAreCut) {
  EXPECT_EQ(Prefixed(LinePrefixer("> ", 4), {"abcdefghij\n"}),
            "> abcd\n> efgh\n> ij\n");
  EXPECT_EQ(Prefixed(LinePrefixer("> ", 4), {"abc", "def"}), "> abcd\n> ef\n");
  // A line of exactly the limit is one line.
  EXPECT_EQ(Prefixed(LinePrefixer("> ", 4), {"abcd", "\n", "e\n"}),
            "> abcd\n> e\n");
}

TEST(LinePrefixerTest, WithoutAPrefixBytesPassAsTheyCome) {
  LinePrefixer prefixer("");
  std::string out;
  prefixer.Append("50%\r", &out);
  EXPECT_EQ(out, "50%\r");
}

TEST(LinePrefixerTest, JsonObjectsStayObjectsAndNameTheirWorker) {
  EXPECT_EQ(Prefixed(LinePrefixer::OfJson("[a/1] ", "a", 1),
                     {"{\"event\":\"x\"}\n{}\nplain\n{\"node\":\"b\"}\n",
                      "{\"torn\"\n[1]\n{\"last\":", "2}"}),
            "{\"node\":\"a\",\"slot\":1,\"event\":\"x\"}\n"
            "{\"node\":\"a\",\"slot\":1}\n"
            "[a/1] plain\n"
            "{\"node\":\"b\"}\n"
            "[a/1] {\"torn\"\n"
            "[a/1] [1]\n"
            "{\"node\":\"a\",\"slot\":1,\"last\":2}\n");
}

TEST(LinePrefixerTest, ObjectsAreRecognisedOnlyIfTheLogIsJson) {
  EXPECT_EQ(Prefixed(LinePrefixer("[a/1] "), {"{}\n"}), "[a/1] {}\n");
}

}  // namespace
}  // namespace coxswain
