#include "server/membership/pipeline_places.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::server::pipeline_places_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// pp=2, dp=2.
class PipelinePlacesTest : public testing::Test {
 protected:
  PipelinePlacesTest() : mesh_(*Mesh::Parse("pp=2,dp=2")), members_(4) {
    plan_.terms.pipeline = "1f1b";
    plan_.accumulation_steps = 2;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      members_[rank].member.rank = static_cast<int>(rank);
      members_[rank].state = MemberState::kAttached;
    }
  }
  void PutAll(int micro_batches) {
    for (MemberDescription& member : members_) {
      member.progress.pipeline =
          PipelinePlace{0, 0, micro_batches, absl::Seconds(1), {}};
    }
  }
  std::string Lost() {
    return PlaceWhenLost(plan_, mesh_, members_, absl::Seconds(1), 0);
  }

  const Mesh mesh_;
  schedule::Plan plan_;
  std::vector<MemberDescription> members_;
};

// With on_resize=keep_global_batch windows are not those of accumulation_steps.
TEST_F(PipelinePlacesTest, WindowsAreThoseOfAGlobalBatch) {
  EXPECT_EQ(LargestWindow(plan_, mesh_, 4), 2);
  plan_.terms.on_resize = schedule::OnResize::kKeepGlobalBatch;
  plan_.global_micro_batches = 7;
  EXPECT_EQ(LargestWindow(plan_, mesh_, 4), 4);
  for (const int window : {3, 4}) {
    PutAll(window);
    EXPECT_THAT(Lost(), HasSubstr("it was in 0F0 of its pipeline, and 1 rank"));
  }
  PutAll(5);
  EXPECT_THAT(Lost(), IsEmpty());
}

TEST_F(PipelinePlacesTest, ALargeScheduleIsNotMadeWhileOthersWait) {
  for (const int window : {512, 513}) {
    plan_.accumulation_steps = window;
    PutAll(window);
    EXPECT_EQ(Lost().empty(), window > 512) << "it has 8 actions for each";
  }
}

TEST_F(PipelinePlacesTest, SilenceIsLongerThanTheTimeBetweenHeartbeats) {
  EXPECT_EQ(PlacesOf(members_, mesh_, absl::Seconds(1)).silent_after,
            absl::Seconds(3));
  EXPECT_EQ(PlacesOf(members_, mesh_, absl::Seconds(10)).silent_after,
            absl::Seconds(20));
}

}  // namespace
}  // namespace coxswain::server::pipeline_places_test
