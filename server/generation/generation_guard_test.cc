#include "server/generation/generation_guard.h"

#include "base/status_matchers.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

Fence FenceOf(int64_t generation) {
  Fence fence;
  fence.job = "job";
  fence.generation = Generation(generation);
  return fence;
}

TEST(GenerationGuardTest, RefusesWhatHasEndedAndNothingElse) {
  GenerationGuard guard;
  guard.End(Generation(5));
  EXPECT_THAT(guard.Check(FenceOf(5)),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("generation 5 of job \"job\" has ended")));
  // Another job may have begun earlier and run on.
  EXPECT_OK(guard.Check(FenceOf(4)));
  EXPECT_OK(guard.Check(FenceOf(6)));
}

TEST(GenerationGuardTest, WhenTheCoordinatorEndsEverybodyMayTryAgain) {
  GenerationGuard guard;
  const absl::Status reason = absl::UnavailableError("it shuts down");
  guard.End(Generation(5), reason);
  EXPECT_EQ(guard.Check(FenceOf(5)), reason);
  EXPECT_EQ(guard.Check(FenceOf(6)), reason);
  EXPECT_EQ(GenerationGuard::EndOf("job", Generation(5), reason), reason);
  EXPECT_THAT(GenerationGuard::EndOf("job", Generation(5),
                                     absl::AbortedError("rank 1 was lost")),
              StatusIs(absl::StatusCode::kAborted,
                       HasSubstr("has ended: rank 1 was lost")));
}

TEST(GenerationGuardTest, IsBoundedAndForgetsTheEarliestEnd) {
  GenerationGuard guard;
  constexpr int64_t kMany = GenerationGuard::kRemembered + 1;
  for (int64_t i = 1; i <= kMany; ++i) {
    guard.End(Generation(i));
    guard.End(Generation(i));
  }
  EXPECT_EQ(guard.size(), GenerationGuard::kRemembered);
  EXPECT_OK(guard.Check(FenceOf(1)));
  EXPECT_FALSE(guard.Check(FenceOf(2)).ok());
  EXPECT_FALSE(guard.Check(FenceOf(kMany)).ok());
}

}  // namespace
}  // namespace coxswain::server
