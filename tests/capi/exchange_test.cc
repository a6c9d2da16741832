// Gradients that go through the plan's hook, on ranks that are threads.

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/capi/exchange_steps.h"
#include "tests/capi/loaded_library.h"

namespace coxswain::capi_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(CapiExchangeTest, AveragesBucketsInPlace) {
  Job job(2);
  job.Each([](int rank, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
    std::vector<float> data(kCount, static_cast<float>(2 * rank));
    for (int step = 0; step < 3; ++step) {
      ASSERT_EQ(Announce(session, step), CX_OK) << Message();
      data.assign(kCount, static_cast<float>(2 * rank));
      std::vector<float> other(kCount, static_cast<float>(4 * rank));
      ASSERT_EQ(HandOver(session, 0, &data), CX_OK) << Message();
      ASSERT_EQ(HandOver(session, 1, &other), CX_OK) << Message();
      ASSERT_EQ(Await(session), CX_OK) << Message();
      EXPECT_THAT(data, Each(1.f));
      EXPECT_THAT(other, Each(2.f));
      cx_decision decision;
      ASSERT_EQ(Decide(session, false, &decision), CX_OK) << Message();
      EXPECT_EQ(decision.commit, 1);
    }
  });
  job.Leave();
}

TEST(CapiExchangeTest, AStepThatIsSkippedLeavesNothingInTheHook) {
  Job job(2, kPowerSgd);
  job.Each([](int rank, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
    for (int step = 0; step < 3; ++step) Step(session, step, rank);
    const std::string before = State(session, true);
    Step(session, 3, rank, /*refuse=*/true);
    EXPECT_EQ(State(session, true), before);
    Step(session, 4, rank);
    EXPECT_NE(State(session, true), before);
  });
  job.Leave();
}

TEST(CapiExchangeTest, AnyNumberOfRanksGoesOnWithAState) {
  std::vector<std::string> parts(2);
  std::vector<float> next[2];
  {
    Job job(2, kPowerSgd);
    job.Each([&](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      for (int step = 0; step < 4; ++step) Step(session, step, rank);
      const std::string whole = State(session, true);
      parts[static_cast<size_t>(rank)] = State(session, false);
      // What was restored is what was there.
      ASSERT_EQ(Load(session, {whole}), CX_OK) << Message();
      next[rank] = Step(session, 4, rank);
    });
    job.Leave();
    EXPECT_EQ(next[0], next[1]);
  }
  for (const int ranks : {1, 2, 3}) {
    Job job(ranks, kPowerSgd);
    std::vector<std::vector<float>> averages(static_cast<size_t>(ranks));
    job.Each([&](int rank, cx_session session) {
      ASSERT_EQ(Open(session), CX_OK) << Message();
      EXPECT_EQ(Load(session, {parts[1]}), CX_FAILED_PRECONDITION);
      ASSERT_EQ(Load(session, parts), CX_OK) << Message();
      averages[static_cast<size_t>(rank)] = Step(session, 0, rank);
    });
    job.Leave();
    EXPECT_THAT(averages, Each(averages[0]));
  }
}

TEST(CapiExchangeTest, BytesThatAreNoStateAreRefused) {
  Job job(1, kPowerSgd);
  ASSERT_EQ(Open(job[0]), CX_OK) << Message();
  EXPECT_EQ(Load(job[0], {"damaged"}), CX_DATA_LOSS) << Message();
  EXPECT_EQ(Load(job[0], {}), CX_INVALID_ARGUMENT);
  Step(job[0], 0, 0);
  job.Leave();
}

TEST(CapiExchangeTest, RanksWithOtherParametersAreNamed) {
  Job job(2);
  job.Each([](int rank, cx_session session) {
    ASSERT_EQ(Open(session, nullptr, rank == 0 ? "a" : "c"), CX_OK)
        << Message();
    ASSERT_EQ(Announce(session, 0), CX_OK) << Message();
    cx_decision decision;
    EXPECT_EQ(Decide(session, false, &decision), CX_ABORTED);
    EXPECT_EQ(api.cx_last_error_kind(), CX_ERROR_RANKS_DIFFER);
    EXPECT_THAT(Message(), HasSubstr("layout of the buckets"));
  });
}

TEST(CapiExchangeTest, StreamsHaveHooksOfTheirOwn) {
  Job job(2);
  job.Each([](int, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
    ASSERT_EQ(Open(session, "other"), CX_OK) << Message();
    // With other parameters.
    ASSERT_EQ(Open(session, "other", "c"), CX_OK) << Message();
  });
  job.Leave();
}

TEST(CapiExchangeTest, CallsInTheWrongOrderAreRefused) {
  Job job(1);
  std::vector<float> data(kCount);
  EXPECT_EQ(HandOver(job[0], 0, &data), CX_FAILED_PRECONDITION);
  EXPECT_THAT(Message(), HasSubstr("cx_exchange_open"));
  const cx_parameter none{};
  EXPECT_EQ(api.cx_exchange_open(job[0], nullptr, &none, 0, nullptr),
            CX_INVALID_ARGUMENT);
  ASSERT_EQ(Open(job[0]), CX_OK) << Message();
  EXPECT_EQ(Await(job[0]), CX_FAILED_PRECONDITION);
  ASSERT_EQ(HandOver(job[0], 0, &data), CX_OK) << Message();
  EXPECT_EQ(Await(job[0]), CX_FAILED_PRECONDITION);
  EXPECT_THAT(Message(), HasSubstr("1 buckets"));
  EXPECT_EQ(Announce(job[0], 0), CX_FAILED_PRECONDITION);
}

TEST(CapiExchangeTest, ABucketThatDoesNotFitIsRefused) {
  Job job(1);
  ASSERT_EQ(Open(job[0]), CX_OK) << Message();
  std::vector<float> data(kCount - 1);
  EXPECT_EQ(HandOver(job[0], 0, &data), CX_INVALID_ARGUMENT);
  EXPECT_THAT(Message(), AllOf(HasSubstr("bucket 0"), HasSubstr("elements")));
}

TEST(CapiExchangeTest, APeerThatLeavesEndsTheWait) {
  Job job(2);
  job.Each([](int, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
    ASSERT_EQ(Announce(session, 0), CX_OK) << Message();
  });
  job.Each([](int rank, cx_session session) {
    if (rank == 1) {
      api.cx_leave(session, "it gives up", 1, nullptr);
      return;
    }
    std::vector<float> data[2];
    for (int i = 0; i < 2; ++i) {
      data[i].assign(kCount, 1);
      // The communicator may have ended already.
      (void)HandOver(session, i, &data[i]);
    }
    EXPECT_EQ(Await(session), CX_ABORTED);
    EXPECT_EQ(api.cx_last_error_kind(), CX_ERROR_MEMBER_LOST);
    EXPECT_THAT(Message(), HasSubstr("it gives up"));
  });
}

TEST(CapiExchangeTest, AWaitThatIsCancelledLeavesTheMemoryAlone) {
  Job job(2);
  job.Each([](int, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
  });
  std::vector<float> data[2];
  for (int i = 0; i < 2; ++i) {
    data[i].assign(kCount, 1);
    ASSERT_EQ(HandOver(job[0], i, &data[i]), CX_OK) << Message();
  }
  cx_call call = 0;
  ASSERT_EQ(api.cx_exchange_wait(job[0], nullptr, &call), CX_AGAIN);
  ASSERT_EQ(api.cx_cancel(&call), CX_OK) << Message();
  EXPECT_EQ(HandOver(job[0], 0, &data[0]), CX_CANCELLED);
}

TEST(CapiExchangeTest, ASessionThatIsClosedLeavesTheMemoryAlone) {
  // Rank 2 never exchanges anything.
  Job job(3);
  job.Each([](int, cx_session session) {
    ASSERT_EQ(Open(session), CX_OK) << Message();
  });
  std::vector<float> data[2][2];
  for (int i = 0; i < 4; ++i) {
    std::vector<float>& bucket = data[i / 2][i % 2];
    bucket.assign(kCount, 1);
    ASSERT_EQ(HandOver(job[i / 2], i % 2, &bucket), CX_OK) << Message();
  }
  // A wait that is not cancelled keeps what it waits for.
  cx_call call = 0;
  ASSERT_EQ(api.cx_exchange_wait(job[0], nullptr, &call), CX_AGAIN);
  ASSERT_EQ(api.cx_close(job[0]), CX_OK) << Message();
  EXPECT_EQ(api.cx_wait(&call), CX_CANCELLED);
  EXPECT_THAT(Message(), HasSubstr("closed the session"));
  EXPECT_EQ(call, 0u);
  EXPECT_EQ(Await(job[1]), CX_ABORTED);
  EXPECT_THAT(Message(), HasSubstr("closed without cx_leave"));
}

}  // namespace
}  // namespace coxswain::capi_test
