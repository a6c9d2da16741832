#include "client/reduce/bucket_stream.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/step_gate.h"

namespace coxswain {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An AverageHook with the spec of its plan, whose state can be carried over
// within one family: the part of the spec before a slash.
class NamedHook : public AverageHook {
 public:
  explicit NamedHook(std::string spec) : AverageHook({2}), spec_(spec) {}

  std::string spec() const override { return spec_; }
  int64_t step() const override { return before_ + AverageHook::step(); }
  absl::StatusOr<HookState> SaveOwn() const override {
    HookState state;
    state.spec = spec_;
    state.step = step();
    return state;
  }
  absl::Status LoadOwn(const HookState& state, double) override {
    const auto family = [](const std::string& spec) {
      return spec.substr(0, spec.find('/'));
    };
    if (family(state.spec) != family(spec_)) {
      return absl::FailedPreconditionError("it is of another family");
    }
    before_ = state.step;
    return absl::OkStatus();
  }
  bool needs_averager() const override { return spec_ == "apart"; }

 private:
  const std::string spec_;
  int64_t before_ = 0;
};

schedule::Plan PlanOf(const std::string& hook, int64_t version = 1) {
  schedule::Plan plan;
  plan.hook = hook;
  plan.version = version;
  return plan;
}

// Counts the exchanges that are noted.
class NotingGate : public schedule::StepGate {
 public:
  absl::Status Announce(const schedule::Ticket&) override {
    return absl::OkStatus();
  }
  absl::Status AwaitGrant() override { return absl::OkStatus(); }
  absl::StatusOr<schedule::Decision> Decide(const schedule::Vote&) override {
    return schedule::Decision();
  }
  void NoteExchange(int64_t gradient_bytes, absl::Duration) override {
    exchanged_bytes.push_back(gradient_bytes);
  }

  std::vector<int64_t> exchanged_bytes;
};

// A stream of four parameters of 4 elements, and the hook that it made last.
struct Rank {
  explicit Rank(Communicator* communicator, const std::string& hook = "a",
                absl::Duration timeout = kSoon) {
    BucketStream::Options options;
    options.communicator = communicator;
    options.clock = Clock::Real();
    options.gate = &gate;
    options.timeout = timeout;
    options.make_hook = [this](const schedule::Plan& plan) {
      auto made = std::make_unique<NamedHook>(plan.hook);
      last = made.get();
      return absl::StatusOr<std::unique_ptr<Hook>>(std::move(made));
    };
    options.explain = [this](const absl::Status& status) {
      explained.Add(std::string(status.message()));
      return absl::Status(status.code(),
                          absl::StrCat("explained: ", status.message()));
    };
    auto made =
        BucketStream::Create(std::move(options), Parameters(4), PlanOf(hook));
    status = made.status();
    if (made.ok()) stream = *std::move(made);
  }

  // Hands over a bucket of one parameter, all of whose elements are `value`.
  absl::Status Add(int index, float value, bool last_one) {
    memory[static_cast<size_t>(index)].assign(4, value);
    Bucket bucket;
    bucket.index = index;
    bucket.last = last_one;
    bucket.data = SpanOf(&memory[static_cast<size_t>(index)]);
    bucket.gradients = {{3 - index, 0, 4}};
    return stream->Add(bucket);
  }
  absl::Status Step(int buckets, float value) {
    for (int i = 0; i < buckets; ++i) {
      const absl::Status added = Add(i, value, i + 1 == buckets);
      if (!added.ok()) return added;
    }
    return Wait();
  }
  absl::Status Wait() {
    return stream->Wait(kSoon).value_or(absl::DeadlineExceededError("slow"));
  }

  std::vector<std::vector<float>> memory{4};
  NotingGate gate;
  NamedHook* last = nullptr;
  Log explained;
  std::unique_ptr<BucketStream> stream;
  absl::Status status;
};

TEST(BucketStreamTest, AveragesBucketsWhoseNumberItIsNotTold) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    Rank one(communicator);
    for (const int buckets : {1, 4, 4}) {
      ASSERT_OK(one.Step(buckets, static_cast<float>(1 + 2 * rank)));
      EXPECT_THAT(one.memory[0], Each(2.f));
      EXPECT_THAT(one.memory[static_cast<size_t>(buckets) - 1], Each(2.f));
      ASSERT_OK(one.stream->End(/*commit=*/buckets == 4));
    }
    EXPECT_EQ(one.last->step(), 2);
    EXPECT_EQ(one.last->rollbacks(), 1);
  });
}

TEST(BucketStreamTest, TheOrderDependsOnTheIndicesAlone) {
  // As that of the reducer's buckets.
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  ASSERT_OK(one.Add(0, 1, false));
  ASSERT_TRUE(one.last->log().WaitForSize(1));
  ASSERT_OK(one.Add(1, 1, false));
  ASSERT_OK(one.Add(2, 1, true));
  ASSERT_OK(one.Wait());
  EXPECT_THAT(one.last->log().events(),
              ElementsAre("0.0", "1.0", "0.1", "2.0", "1.1", "0.2", "2.1",
                          "1.2", "2.2"));
}

TEST(BucketStreamTest, AnExchangeIsNotedOnceHoweverOftenItIsWaitedFor) {
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  for (const int buckets : {2, 3}) {
    ASSERT_OK(one.Step(buckets, 1));
    ASSERT_OK(one.Wait());
    ASSERT_OK(one.stream->End(true));
  }
  EXPECT_THAT(one.gate.exchanged_bytes, ElementsAre(32, 48));
}

TEST(BucketStreamTest, OnlyWaitWaits) {
  const auto waits = std::make_shared<WaitCount>();
  HeldCommunicator network(std::make_unique<LoopbackCommunicator>());
  network.CountWaitsIn(waits);
  Rank one(&network);
  ASSERT_OK(one.Add(0, 1, true));
  ASSERT_TRUE(network.AwaitLaunches(1, kSoon));
  EXPECT_EQ(one.stream->Wait(absl::ZeroDuration()), std::nullopt);
  EXPECT_EQ(waits->ended(), 0) << "it goes on";
  network.Open();
  ASSERT_OK(one.Wait());
  EXPECT_EQ(waits->ended(), 1) << "those of the thread do not count";
}

TEST(BucketStreamTest, AWaitWithoutTheLastBucketBreaksIt) {
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  EXPECT_EQ(one.stream->Wait(absl::ZeroDuration())->code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_OK(one.Add(0, 1, false));
  const auto missing =
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("1 buckets, and the last one was not handed over"));
  EXPECT_THAT(one.Wait(), missing);
  EXPECT_THAT(one.Add(1, 1, true), missing);
}

TEST(BucketStreamTest, ABucketThatDoesNotComeInTimeBreaksIt) {
  LoopbackCommunicator communicator;
  Rank one(&communicator, "a", absl::Milliseconds(20));
  ASSERT_OK(one.Add(0, 1, false));
  ASSERT_TRUE(one.explained.WaitForSize(1));
  EXPECT_THAT(
      one.explained.events(),
      ElementsAre(AllOf(HasSubstr("rank 0 has not handed over bucket 1"),
                        HasSubstr("20ms"))));
  one.stream.reset();
  EXPECT_THAT(AbortReason(&communicator), HasSubstr("bucket 1"));
}

TEST(BucketStreamTest, ABucketThatDoesNotFitBreaksIt) {
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  std::vector<float> memory(8);
  Bucket bucket;
  bucket.data = SpanOf(&memory);
  bucket.gradients = {{0, 0, 4}, {1, 5, 3}};
  EXPECT_THAT(one.stream->Add(bucket),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("bucket 0"), HasSubstr("\"p1\""))));
  EXPECT_EQ(one.Wait().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(AbortReason(&communicator), HasSubstr("\"p1\""));
}

TEST(BucketStreamTest, CallsInTheWrongOrderAreRefused) {
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  const auto refused = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(one.Add(1, 1, false), StatusIs(refused, HasSubstr("is 0")));
  ASSERT_OK(one.Add(0, 1, true));
  EXPECT_THAT(one.Add(1, 1, true), StatusIs(refused, HasSubstr("last one")));
  ASSERT_OK(one.Wait());
  EXPECT_THAT(one.stream->Follow(PlanOf("b")),
              StatusIs(refused, HasSubstr("has not ended")));
  EXPECT_THAT(one.stream->SaveShard(),
              StatusIs(refused, HasSubstr("has not ended")));
  ASSERT_OK(one.stream->End(true));
  ASSERT_OK(one.stream->End(true));  // There is none.
  EXPECT_EQ(one.last->step(), 1);
}

TEST(BucketStreamTest, AnErrorEndsTheWaitOfPeersAndIsExplained) {
  OnRanks(2, [](int rank, Communicator* communicator) {
    Rank one(communicator);
    ASSERT_OK(one.Add(0, 1, false));
    if (rank == 1) {
      one.stream->Abort(absl::AbortedError("it gives up"));
      EXPECT_THAT(one.Wait(), StatusIs(absl::StatusCode::kAborted,
                                       HasSubstr("it gives up")));
    } else {
      (void)one.Add(1, 1, true);
      EXPECT_THAT(one.Wait().message(), HasSubstr("explained: bucket "));
    }
    EXPECT_FALSE(one.Add(0, 1, true).ok());
  });
}

TEST(BucketStreamTest, WhatIsReleasedHasTheStepsThatCount) {
  const absl::Status over = absl::AbortedError("it is over");
  for (const bool commit : {false, true}) {
    LoopbackCommunicator communicator;
    Rank one(&communicator);
    ASSERT_OK(one.Step(2, 1));
    EXPECT_THAT(one.stream->hook(),
                StatusIs(absl::StatusCode::kFailedPrecondition, testing::_));
    ASSERT_OK(one.stream->End(true));
    ASSERT_OK_AND_ASSIGN(const Hook* const hook, one.stream->hook());
    EXPECT_EQ(hook, one.last);
    ASSERT_OK(one.Step(2, 1));
    ASSERT_OK_AND_ASSIGN(const HookState state,
                         one.stream->Release(commit, over, kSoon));
    EXPECT_EQ(state.step, commit ? 2 : 1);
    EXPECT_EQ(one.Add(0, 1, true), over);
    // Peers may still read from it.
    EXPECT_EQ(AbortReason(&communicator), "");
  }
}

TEST(BucketStreamTest, WhatIsReleasedHasNothingOfAStepThatIsCutShort) {
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  ASSERT_OK(one.Step(2, 1));
  ASSERT_OK(one.stream->End(true));
  ASSERT_OK(one.Add(0, 1, false));
  ASSERT_OK_AND_ASSIGN(
      const HookState state,
      one.stream->Release(false, absl::AbortedError("it is over"), kSoon));
  EXPECT_EQ(state.step, 1);
  EXPECT_GE(one.last->rollbacks(), 1);
  EXPECT_EQ(AbortReason(&communicator), "it is over");
}

TEST(BucketStreamTest, EndsWhileItsLastBucketIsMissing) {
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  ASSERT_OK(one.Add(0, 1, false));
  one.stream.reset();
  EXPECT_THAT(AbortReason(&communicator), HasSubstr("given up"));
}

TEST(BucketStreamTest, APlanChangesTheHookWithTheNextStep) {
  OnRanks(2, [](int, Communicator* communicator) {
    Rank one(communicator);
    ASSERT_OK(one.Step(2, 1));
    ASSERT_OK(one.stream->End(true));
    ASSERT_OK(one.stream->Follow(PlanOf("a/2", 2)));
    EXPECT_EQ(one.last->spec(), "a");
    ASSERT_OK(one.Step(2, 1));
    ASSERT_OK(one.stream->End(true));
    EXPECT_EQ(one.last->spec(), "a/2");
    EXPECT_EQ(one.last->step(), 2);
    // Nothing of another family.
    schedule::Plan plan = PlanOf("b", 3);
    plan.terms.hook_state = schedule::HookStatePolicy::kReset;
    ASSERT_OK(one.stream->Follow(plan));
    ASSERT_OK(one.Step(2, 1));
    ASSERT_OK(one.stream->End(true));
    EXPECT_EQ(one.last->step(), 1);
    ASSERT_OK(one.stream->Follow(PlanOf("c", 4)));
    EXPECT_THAT(one.Step(2, 1),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("version 4 of the plan"),
                               HasSubstr("another family"),
                               HasSubstr("hook_state=reset"))));
  });
}

TEST(BucketStreamTest, WhatItHasExchangedIsPartOfWhatRanksCompare) {
  LoopbackCommunicator communicator;
  Rank one(&communicator);
  const uint64_t layout = one.stream->layout();
  const uint64_t digest = one.stream->digest();
  ASSERT_OK(one.Step(2, 1));
  ASSERT_OK(one.stream->End(true));
  const uint64_t next = one.stream->layout();
  EXPECT_NE(next, layout);
  EXPECT_NE(one.stream->digest(), digest);
  ASSERT_OK(one.Step(2, 1));
  ASSERT_OK(one.stream->End(true));
  EXPECT_EQ(one.stream->layout(), next);
}

TEST(BucketStreamTest, AHookThatLeavesParametersApartIsRefused) {
  LoopbackCommunicator communicator;
  Rank one(&communicator, "apart");
  EXPECT_THAT(one.status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("averager")));
}

}  // namespace
}  // namespace coxswain
