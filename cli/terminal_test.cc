#include "cli/terminal.h"

#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/fake_clock.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::Not;

class ProgressTest : public testing::Test {
 protected:
  ProgressOutput Output(bool terminal) {
    ProgressOutput output;
    output.write = [this](const std::string& text) { shown_ += text; };
    output.terminal = terminal;
    output.clock = &clock_;
    return output;
  }

  FakeClock clock_;
  std::string shown_;
};

TEST_F(ProgressTest, SizesHaveThreeDigits) {
  EXPECT_EQ(SizeText(0), "0 B");
  EXPECT_EQ(SizeText(999), "999 B");
  EXPECT_EQ(SizeText(1500), "1.5 kB");
  EXPECT_EQ(SizeText(99'960), "100 kB");
  EXPECT_EQ(SizeText(999'600), "1.0 MB");
  EXPECT_EQ(SizeText(int64_t{64} << 30), "68.7 GB");
}

TEST_F(ProgressTest, WhatEndsAtOnceShowsNothing) {
  {
    Progress progress(Output(true), "exporting", 100);
    progress.Add(100);
  }
  EXPECT_EQ(shown_, "");
}

TEST_F(ProgressTest, ATerminalHasOneLineWithRateAndTimeLeft) {
  {
    Progress progress(Output(true), "exporting", 4'000'000);
    clock_.Advance(absl::Seconds(1));
    progress.Add(1'000'000);
    EXPECT_THAT(shown_, HasSubstr("\rexporting [######......"));
    EXPECT_THAT(shown_, HasSubstr(" 25%  1.0 MB of 4.0 MB  1.0 MB/s  3s left"));
    const size_t length = shown_.size();
    progress.Add(1);
    EXPECT_EQ(shown_.size(), length) << "drawn too often";
    progress.Add(2'999'999);
    EXPECT_THAT(shown_.substr(length), HasSubstr("100%"));
    EXPECT_THAT(shown_, Not(HasSubstr("\n")));
  }
  EXPECT_EQ(shown_.back(), '\n');
}

TEST_F(ProgressTest, ElsewhereThereIsALineNowAndThen) {
  Progress progress(Output(false), "importing", 4'000'000);
  clock_.Advance(absl::Seconds(1));
  progress.Add(1'000'000);
  EXPECT_EQ(shown_, "");
  clock_.Advance(absl::Seconds(9));
  progress.Add(1'000'000);
  EXPECT_EQ(shown_,
            "coxswain: importing  50%  2.0 MB of 4.0 MB  200 kB/s  10s left\n");
}

std::string ReadSome(int fd) {
  char text[4096];
  const ssize_t got = read(fd, text, sizeof(text));
  return std::string(text, got > 0 ? got : 0);
}

TEST_F(ProgressTest, APseudoTerminalGetsABarThatIsDrawnOver) {
  setenv("TERM", "xterm", 1);
  int ends[2] = {-1, -1};
  ASSERT_EQ(openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  ProgressOutput output = ProgressOn(far.get());
  EXPECT_TRUE(output.terminal);
  output.clock = &clock_;
  {
    Progress progress(output, "verifying", 4'000'000);
    clock_.Advance(absl::Seconds(1));
    progress.Add(1'000'000);
    EXPECT_EQ(ReadSome(near.get()),
              "\rverifying [######..................]  25%  1.0 MB of 4.0 MB  "
              "1.0 MB/s  3s left\x1b[K");
    clock_.Advance(absl::Seconds(1));
    progress.Add(3'000'000);
    EXPECT_THAT(ReadSome(near.get()), HasSubstr("\rverifying [####"));
  }
  EXPECT_EQ(ReadSome(near.get()), "\r\n");
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(ProgressOn(far.get()).terminal);
}

TEST_F(ProgressTest, APipeGetsLines) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd near(ends[0]);
  const UniqueFd far(ends[1]);
  ProgressOutput output = ProgressOn(far.get());
  EXPECT_FALSE(output.terminal);
  output.clock = &clock_;
  Progress progress(output, "importing", 4'000'000);
  clock_.Advance(absl::Seconds(10));
  progress.Add(1'000'000);
  EXPECT_EQ(ReadSome(near.get()),
            "coxswain: importing  25%  1.0 MB of 4.0 MB  100 kB/s  30s left\n");
}

}  // namespace
}  // namespace coxswain
