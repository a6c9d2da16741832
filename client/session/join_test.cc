#include "client/session/join.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

// Else some of a large job attach to the fallback coordinator each time that
// the coordinator cuts the streams, which it does each time that one returns.
TEST(SessionWireTest, NoRankFollowsTheFallbackWhileOthersStillReattach) {
  SessionOptions options;
  for (const int world_size : {2, 450, 1000, 10000}) {
    EXPECT_GE(FallbackAfter(options, world_size),
              ReattachSpread(world_size) + 2 * options.retry_base)
        << world_size;
  }
  // Of many the last come late.
  for (const int world_size : {1000, 10000}) {
    EXPECT_GE(FallbackAfter(options, world_size),
              ReattachSpread(world_size) + 4 * options.retry_base)
        << world_size;
  }
  EXPECT_EQ(ReattachSpread(1000), absl::Seconds(1));
}

// Of a few members each pause is one by which training may stand still longer.
// But also theirs vary, from retry_base on.
TEST(SessionWireTest, FewMembersPauseShortly) {
  SessionOptions options;
  EXPECT_EQ(RetriesOfMember(options, 4).cap, absl::Milliseconds(204));
  EXPECT_EQ(RetriesOfMember(options, 1000).cap, absl::Milliseconds(1200));
  EXPECT_EQ(RetriesOfMember(options, 100000).cap, options.retry_cap);
}

}  // namespace
}  // namespace coxswain
