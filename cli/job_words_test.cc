#include "cli/job_words.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/membership/liveness.h"

namespace coxswain::job_words_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(JobWordsTest, AgesAreWholeSecondsWhereThereAreAny) {
  EXPECT_EQ(AgeText(250), "250ms");
  EXPECT_EQ(AgeText(133'245), "2m13s");
  EXPECT_EQ(AgoText(133'245, absl::FromUnixSeconds(1'700'000'000)),
            "2m13s ago (2023-11-14 22:11:06 UTC)");
}

TEST(JobWordsTest, EachKindOfFailureHasItsNextStep) {
  EXPECT_THAT(NextStep("rank 1 was lost: killed by signal 9 (reported by its "
                       "launcher)"),
              HasSubstr("dmesg"));
  EXPECT_THAT(NextStep("rank 1 was lost: killed by signal 11 (reported by its "
                       "launcher)"),
              HasSubstr("a fault in the program"));
  EXPECT_THAT(NextStep("step 8 of stream \"train\": rank 1 has not announced "
                       "it; the others have waited for 12s"),
              HasSubstr("py-spy dump"));
  EXPECT_THAT(NextStep("the job makes progress; no rank waits"), IsEmpty());
  EXPECT_THAT(NextStep("all 2 members of job 'x' have left cleanly"),
              IsEmpty());
}

// The reasons as the coordinator makes them.
TEST(JobWordsTest, EachReasonOfALossHasItsNextStep) {
  server::LivenessOptions options;
  options.lease = options.reattach_grace = absl::Seconds(10);
  options.broken_peer_grace = absl::Seconds(3);
  const absl::Time start = absl::UnixEpoch();
  server::LivenessState state;
  state.last_sign = state.detached_at = start;
  for (const auto life :
       {server::MemberState::kAttached, server::MemberState::kDetached}) {
    for (const bool attached : {false, true}) {
      for (const bool broken : {false, true}) {
        state.state = life;
        state.attached_this_term = attached;
        state.broken_at = broken ? start : absl::InfinitePast();
        const server::LivenessVerdict verdict =
            DecideLiveness(start + absl::Seconds(20), state, options);
        ASSERT_TRUE(verdict.lost);
        EXPECT_NE(NextStep(verdict.reason), "") << verdict.reason;
      }
    }
  }
}

TEST(JobWordsTest, OnlyWorkThatIsDoneEndedWell) {
  EXPECT_TRUE(EndedWell("all 2 members of job 'x' have left cleanly"));
  EXPECT_FALSE(
      EndedWell("all 2 members of job 'x' have left cleanly, before "
                "their work was done"));
  EXPECT_FALSE(EndedWell("rank 1 (b/0) failed: out of memory"));
}

}  // namespace
}  // namespace coxswain::job_words_test
