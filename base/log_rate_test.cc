#include "base/logging.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/fake_clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class LogRateTest : public testing::Test {
 protected:
  // Returns what is logged meanwhile.
  template <typename Do>
  static std::vector<std::string> LinesOf(const Do& what) {
    testing::internal::CaptureStderr();
    what();
    return absl::StrSplit(testing::internal::GetCapturedStderr(), '\n',
                          absl::SkipEmpty());
  }

  void Refuse(absl::string_view peer) { rate_->Line(peer, {{"peer", peer}}); }

  FakeClock clock_;
  std::unique_ptr<LogRate> rate_ =
      std::make_unique<LogRate>("call_refused", &clock_);
};

TEST_F(LogRateTest, APeerHasALineInAPeriodAndTheOthersAreCounted) {
  EXPECT_THAT(LinesOf([this] {
                for (int i = 0; i < 2400; ++i) Refuse("10.0.0.1");
              }),
              ElementsAre(HasSubstr(" W call_refused peer=10.0.0.1")));
  clock_.Advance(LogRate::kPeriod);
  EXPECT_THAT(LinesOf([this] { Refuse("10.0.0.1"); }),
              ElementsAre(AllOf(HasSubstr(" W log_lines_left_out "),
                                HasSubstr("of=call_refused lines=2399")),
                          HasSubstr("call_refused peer=10.0.0.1")));
}

TEST_F(LogRateTest, APeerThatFloodsTheLogDoesNotSilenceOthers) {
  EXPECT_THAT(LinesOf([this] {
                for (int i = 0; i < 10'000; ++i) Refuse("10.0.0.1");
                Refuse("10.0.0.2");
              }),
              Contains(HasSubstr("call_refused peer=10.0.0.2")));
}

TEST_F(LogRateTest, PeersWithoutNumberSilenceOthersForAPeriodAndNoLonger) {
  EXPECT_THAT(LinesOf([this] {
                for (int i = 0; i < 10'000; ++i) Refuse(absl::StrCat(i));
              }),
              SizeIs(LogRate::kLines));
  clock_.Advance(LogRate::kPeriod);
  EXPECT_THAT(LinesOf([this] { Refuse("10.0.0.2"); }),
              ElementsAre(HasSubstr("lines=9900"),
                          HasSubstr("call_refused peer=10.0.0.2")));
}

TEST_F(LogRateTest, WhatIsLeftOutIsCountedAtTheEnd) {
  EXPECT_THAT(LinesOf([this] {
                Refuse("10.0.0.1");
                Refuse("10.0.0.1");
              }),
              SizeIs(1));
  EXPECT_THAT(LinesOf([this] { rate_.reset(); }),
              ElementsAre(HasSubstr("of=call_refused lines=1")));
}

TEST_F(LogRateTest, NothingIsCountedWhereNothingIsLeftOut) {
  EXPECT_THAT(LinesOf([this] { Refuse("10.0.0.1"); }), SizeIs(1));
  clock_.Advance(LogRate::kPeriod);
  EXPECT_THAT(LinesOf([this] { Refuse("10.0.0.1"); }), SizeIs(1));
  EXPECT_THAT(LinesOf([this] { rate_.reset(); }), IsEmpty());
}

TEST(HostOfPeerTest, ThePortIsCutOff) {
  EXPECT_EQ(HostOfPeer("ipv4:10.0.0.1:1234"), "ipv4:10.0.0.1");
  EXPECT_EQ(HostOfPeer("ipv6:[::1]:1234"), "ipv6:[::1]");
  EXPECT_EQ(HostOfPeer("unknown"), "unknown");
}

}  // namespace
}  // namespace coxswain
