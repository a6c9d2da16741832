#include "hooks/options.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Takes words that begin with 'x', and drops zeros behind it.
absl::StatusOr<std::string> CheckWord(absl::string_view text) {
  if (!absl::StartsWith(text, "x")) {
    return absl::InvalidArgumentError("it does not begin with x");
  }
  text.remove_prefix(1);
  while (absl::StartsWith(text, "0")) text.remove_prefix(1);
  return absl::StrCat("x", text);
}

std::vector<OptionDescription> Table() {
  return {TextOption("word", "x1", "x and digits", CheckWord, "a word", {"w"})};
}

absl::StatusOr<OptionValues> Resolve(const std::string& text) {
  const auto error = [](size_t, absl::string_view message) {
    return absl::InvalidArgumentError(message);
  };
  return ResolveOptions(error, *ParseSpec(text), Table());
}

TEST(OptionsTest, ATextIsWhatItsCheckMakesOfIt) {
  ASSERT_OK_AND_ASSIGN(const OptionValues values, Resolve("h(w=x007)"));
  EXPECT_EQ(values.Text("word"), "x7");
  EXPECT_EQ(CanonicalOptions(values, Table()), "word=x7");
}

TEST(OptionsTest, ATextThatStandsForTheDefaultIsLeftOut) {
  ASSERT_OK_AND_ASSIGN(const OptionValues values, Resolve("h(word=x01)"));
  EXPECT_EQ(CanonicalOptions(values, Table()), "");
  ASSERT_OK_AND_ASSIGN(const OptionValues none, Resolve("h"));
  EXPECT_EQ(none.Text("word"), "x1");
}

TEST(OptionsTest, AWrongTextFailsWithTheFormAndTheReason) {
  EXPECT_THAT(Resolve("h(word=7)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("word must be x and digits, got 7"),
                             HasSubstr("does not begin with x"))));
  EXPECT_THAT(Resolve("h(ward=7)"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("its options are word (x and digits)")));
}

TEST(OptionsTest, ATextIsDescribedAsOne) {
  EXPECT_EQ(Table()[0].TypeName(), "text");
  EXPECT_EQ(Table()[0].RangeText(), "x and digits");
  EXPECT_EQ(Table()[0].DefaultText(), "x1");
}

TEST(OptionsTest, RangesReadAsPeopleWriteThem) {
  EXPECT_EQ(DoubleOption("d", 0.5, 1e-8, 1e6, "").RangeText(),
            "1e-08 to 1000000");
  EXPECT_EQ(IntOption("i", 1, 1, 8, "").RangeText(), "1 to 8");
  EXPECT_EQ(
      IntOption("i", 1, 0, std::numeric_limits<int64_t>::max(), "").RangeText(),
      "0 or more");
  EXPECT_EQ(ChoiceOption("c", "a", {"a"}, "").RangeText(), "a");
  EXPECT_EQ(ChoiceOption("c", "a", {"a", "b", "c"}, "").RangeText(),
            "a, b or c");
  EXPECT_EQ(BoolOption("b", true, "").RangeText(), "true or false");
}

TEST(OptionsTest, ATableThatSpecsCannotUseIsRefused) {
  EXPECT_OK(CheckOptionTable(Table()));
  for (const OptionDescription& option :
       {TextOption("word", "y", "x and digits", CheckWord, "a word"),
        TextOption("word", "x01", "x and digits", CheckWord, "a word"),
        IntOption("rank", 0, 1, 4, "a rank"), BoolOption("a b", true, "spaced"),
        BoolOption("", true, "none"), BoolOption("a", true, "doubled", {"a"}),
        DoubleOption("rate", 2, 0, 1, "a rate"),
        ChoiceOption("order", "c", {"a", "b"}, "an order")}) {
    EXPECT_THAT(
        CheckOptionTable({option}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(option.name)));
  }
}

}  // namespace
}  // namespace coxswain
