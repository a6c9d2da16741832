// In which order observers learn of what happens to a job, whichever threads
// cause it: one is held by an observer while others go on.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/status_matchers.h"
#include "schedule/plan.h"
#include "server/membership/membership_fixture.h"
#include "server/schedule/schedule_registry.h"
#include "server/telemetry/telemetry.h"

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Runs a function at an event, before later observers are notified of it.
class HookedObserver : public GenerationObserver {
 public:
  void OnGenerationBegan(const GenerationBegin& /*begin*/) override {
    if (began) began();
  }
  void OnMemberLeft(absl::string_view /*job*/, Generation /*generation*/,
                    int /*rank*/) override {
    if (left) left();
  }
  void OnGenerationEnded(absl::string_view /*job*/, Generation /*generation*/,
                         const absl::Status& /*reason*/) override {
    if (ended) ended();
  }
  std::function<void()> began, left, ended;
};

class OrderTest : public MembershipTest {
 protected:
  void SetUp() override {
    MembershipTest::SetUp();
    membership_->AddObserver(&hooks_);
    membership_->AddObserver(&log_);
  }
  // Holds the first thread that comes, and lets later ones pass.
  std::function<void()> HeldOnce() {
    return [this, first = std::make_shared<bool>(true)] {
      if (std::exchange(*first, false)) latch_.Pass();
    };
  }

  HookedObserver hooks_;
  EventLog log_;
  Latch latch_;
};

TEST_F(OrderTest, AnEndDoesNotOvertakeItsBegin) {
  hooks_.began = HeldOnce();
  Worker* const worker = Make(1, 0);
  std::thread joining([&] { Join(worker); });
  EXPECT_TRUE(latch_.AwaitThread());
  membership_->ReportExit(worker->exit(9));
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(log_.events(), IsEmpty());
  latch_.Open();
  joining.join();
  EXPECT_THAT(log_.events(), ElementsAre("began 1", "ended 1"));
  EXPECT_THAT(worker->answers, SizeIs(1));
}

TEST_F(OrderTest, ABeginDoesNotOvertakeTheEndBeforeIt) {
  Worker* const first = Make(1, 0);
  Join(first);
  hooks_.ended = HeldOnce();
  std::thread ending([&] { membership_->ReportExit(first->exit(9)); });
  EXPECT_TRUE(latch_.AwaitThread());
  Worker* const second = Make(1, 0);
  Join(second);
  Join(second);  // again
  EXPECT_EQ(Description().generation, Generation(1))
      << "no commit begins before the observers know of the end";
  EXPECT_THAT(second->answers, IsEmpty());
  latch_.Open();
  ending.join();
  EXPECT_THAT(log_.events(), ElementsAre("began 1", "ended 1", "began 2"));
  ASSERT_THAT(second->answers, SizeIs(2));
  EXPECT_OK(second->answers[0]);
  EXPECT_OK(second->answers[1]);
}

TEST_F(OrderTest, AnEndDoesNotOvertakeDepartures) {
  const auto team = RunElastic(1, 2, 2);
  hooks_.left = HeldOnce();
  std::thread leaving([&] { EXPECT_OK(Leave(team[0], false)); });
  EXPECT_TRUE(latch_.AwaitThread());
  EXPECT_OK(Leave(team[1], false));
  EXPECT_EQ(Description().state, JobState::kEnded);
  latch_.Open();
  leaving.join();
  EXPECT_THAT(log_.events(),
              ElementsAre("began 1", "left 1 0", "left 1 1", "ended 1"));
}

TEST_F(OrderTest, WhatAnObserverCausesComesAfterWhatItLearns) {
  hooks_.began = [this] {
    membership_->AbortGeneration("job", Generation(1),
                                 absl::AbortedError("it cannot be"));
  };
  Worker* const worker = Make(1, 0);
  Join(worker);
  EXPECT_THAT(log_.events(), ElementsAre("began 1", "ended 1"));
  EXPECT_THAT(worker->answers, SizeIs(1));
}

TEST_F(OrderTest, JobsDoNotWaitForEachOther) {
  hooks_.began = HeldOnce();
  Worker* const held = Make(1, 0, "held");
  std::thread joining([&] { Join(held); });
  EXPECT_TRUE(latch_.AwaitThread());
  Worker* const other = Make(1, 0, "other");
  Join(other);
  EXPECT_THAT(log_.events(), ElementsAre("began 2"));
  EXPECT_THAT(other->answers, SizeIs(1));
  latch_.Open();
  joining.join();
  EXPECT_THAT(log_.events(), ElementsAre("began 2", "began 1"));
}

class CrowdedOrderTest : public OrderTest {
 protected:
  CrowdedOrderTest() { options_.max_jobs = 1; }
};

TEST_F(CrowdedOrderTest, AJobIsNotForgottenBeforeItsObserversKnowOfItsEnd) {
  Worker* const first = Make(1, 0, "first");
  Join(first);
  hooks_.ended = HeldOnce();
  std::thread ending([&] { membership_->ReportExit(first->exit(9)); });
  EXPECT_TRUE(latch_.AwaitThread());
  Worker* const second = Make(1, 0, "second");
  Join(second);
  EXPECT_THAT(second->answers,
              ElementsAre(StatusIs(absl::StatusCode::kResourceExhausted,
                                   HasSubstr("max_jobs is 1"))));
  latch_.Open();
  ending.join();
  Join(second);
  ASSERT_THAT(second->answers, SizeIs(2));
  EXPECT_OK(second->answers[1]);
}

// With components that keep something from the begin of a generation to its
// end.
class ComponentsOrderTest : public OrderTest {
 protected:
  void SetUp() override {
    OrderTest::SetUp();
    schedule_ = std::make_unique<ScheduleRegistry>(
        ScheduleLimits(),
        ScheduleRegistry::Dependencies{&clock_, membership_.get(), plans_.get(),
                                       &writer_});
    membership_->AddObserver(&telemetry_);
    membership_->AddObserver(plans_.get());
    membership_->AddObserver(schedule_.get());
  }
  void TearDown() override {
    schedule_.reset();
    OrderTest::TearDown();
  }

  Telemetry telemetry_{TelemetryLimits(), &clock_};
  std::unique_ptr<ScheduleRegistry> schedule_;
};

TEST_F(ComponentsOrderTest, NothingIsKeptOfAGenerationThatEndedAsItBegan) {
  hooks_.began = HeldOnce();
  Worker* const worker = Make(1, 0);
  std::thread joining([&] { Join(worker); });
  EXPECT_TRUE(latch_.AwaitThread());
  membership_->ReportExit(worker->exit(9));
  const absl::Time end = clock_.Now();
  latch_.Open();
  joining.join();
  clock_.Advance(telemetry_.limits().kept_after_end + absl::Seconds(1));
  telemetry_.Tick(clock_.Now());
  EXPECT_THAT(telemetry_.AllTotals(), IsEmpty());
  // A schedule that has not ended would be looked at for stalls for ever.
  ASSERT_OK_AND_ASSIGN(const WhyReport why, schedule_->Why("job"));
  EXPECT_EQ(why.schedule.at, end);
  schedule::Plan plan = MakePlan(2, "allreduce", -1);
  plan.at_step = schedule::Plan::kAtNextStep;
  EXPECT_THAT(plans_->Propose("job", 1, plan),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::_))
      << "no generation runs";
}

// A departure that proves the plan of a generation counts for the next one.
TEST_F(ComponentsOrderTest, ACommitDoesNotOvertakeADeparture) {
  Worker* const worker = Make(1, 0);
  Join(worker);
  ASSERT_OK(plans_->Propose("job", 1, MakePlan(2, "bf16", -1)));
  ASSERT_OK(Leave(worker, true));
  Rejoin(worker);
  ASSERT_EQ(worker->joined().plan.version, 2);
  // Its first step has been decided, and that alone proves nothing.
  ASSERT_OK(plans_->TakeEffect("job", Generation(2), 1));
  hooks_.left = HeldOnce();
  std::thread leaving([&] { EXPECT_OK(Leave(worker, true)); });
  EXPECT_TRUE(latch_.AwaitThread());
  Rejoin(worker);
  latch_.Open();
  leaving.join();
  ASSERT_OK(worker->answers.back());
  EXPECT_EQ(worker->joined().generation, Generation(3));
  EXPECT_EQ(worker->joined().plan.version, 2);
  EXPECT_EQ(worker->joined().plan.hook, "bf16");
}

}  // namespace
}  // namespace coxswain::server
