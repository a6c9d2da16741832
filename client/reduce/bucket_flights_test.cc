#include "client/reduce/bucket_flights.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fake_clock.h"
#include "base/status_matchers.h"
#include "client/comm/work.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::Le;

// Whose exchanges have collectives without end, each of which is over only
// when it is waited for, which takes 40 s. Notes how long each wait may take.
class SlowHook : public AverageHook {
 public:
  explicit SlowHook(FakeClock* clock) : clock_(clock) {}

  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(const Bucket&,
                                                    Communicator&) override {
    return std::make_unique<Slow>(this);
  }

  std::vector<absl::Duration> waits;

 private:
  class Slow : public Exchange {
   public:
    explicit Slow(SlowHook* hook) : hook_(hook) {}
    absl::StatusOr<WorkPtr> Advance() override {
      const auto to_end = std::make_shared<std::weak_ptr<Work>>();
      const WorkPtr work =
          Work::Assisted([hook = hook_, to_end](absl::Time until) {
            if (until == absl::InfinitePast()) return;
            hook->waits.push_back(until - Clock::Real()->Now());
            hook->clock_->Advance(absl::Seconds(40));
            to_end->lock()->Complete(absl::OkStatus());
          });
      *to_end = work;
      return work;
    }

   private:
    SlowHook* const hook_;
  };

  FakeClock* const clock_;
};

TEST(BucketFlightsTest, AllThatIsInFlightIsDrainedByOneDeadline) {
  FakeClock clock;
  SlowHook hook(&clock);
  LoopbackCommunicator communicator;
  BucketFlights::Context context;
  context.hook = &hook;
  context.communicator = &communicator;
  context.clock = &clock;
  context.timeout = kSoon;
  BucketFlights flights(std::move(context));
  for (int i = 0; i < 2; ++i) {
    auto bucket = std::make_shared<Bucket>();
    bucket->index = i;
    ASSERT_OK(flights.Round(std::move(bucket)));
  }
  hook.waits.clear();
  flights.Drain(absl::Seconds(60));
  EXPECT_THAT(hook.waits,
              ElementsAre(AllOf(Gt(absl::Seconds(50)), Le(absl::Seconds(60))),
                          AllOf(Gt(absl::Seconds(10)), Le(absl::Seconds(20)))));
  EXPECT_TRUE(flights.empty());
}

}  // namespace
}  // namespace coxswain
