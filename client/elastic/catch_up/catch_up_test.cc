// A newcomer takes the state of members that train.

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/no_threads_for_test.h"
#include "base/status_matchers.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/elastic/catch_up/catch_up_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CatchUpTest, ANewcomerTakesTheStateWhileTheMembersTrain) {
  Listen();
  Step();
  sent_ = 0;
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled();
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(), IsEmpty());
}

TEST_F(CatchUpTest, TheOptimizerMayHaveNoStateYet) {
  Listen();
  Step(/*applied=*/false, /*begins=*/true);
  TrainUntilSettled();
  ExpectCaughtUp();
}

TEST_F(CatchUpTest, ANewcomerWithoutAThreadCannotListen) {
  Receiver::Options options;
  options.address = "127.0.0.1";
  const NoThreads none;
  EXPECT_THAT(Receiver::Listen(options, &newcomer_),
              StatusIs(absl::StatusCode::kResourceExhausted, _));
}

// Of a large state a step takes longer than members may be silent.
TEST_F(CatchUpTest, AStepMayTakeLongerThanNothingComes) {
  constexpr absl::Duration kTimeout = absl::Seconds(1);
  Listen();
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled();
  newcomer_.Hold(kTimeout * 1.1);
  Step();
  ExpectCaughtUp(kTimeout);
}

TEST_F(CatchUpTest, AGenerationThatEndsEarlyLeavesNothingBehind) {
  const Program before(5);
  Listen();
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled();
  for (auto& source : sources_) source.reset();
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_TRUE(newcomer_ == before);
}

TEST_F(CatchUpTest, AnExceptionOfTheTargetLeavesNothingBehind) {
  const Program before(5);
  std::atomic<bool> throws{false};
  newcomer_.on_step = [&] {
    if (throws) throw std::runtime_error("no tensor for it");
  };
  Listen();
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled();
  throws = true;
  Step();
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_TRUE(newcomer_ == before);
}

TEST_F(CatchUpTest, AnExceptionInGoingBackIsDataLoss) {
  newcomer_.on_undo = [] {
    throw std::runtime_error("no tensor to go back to");
  };
  Listen();
  Step(/*applied=*/true, /*begins=*/true);
  TrainUntilSettled();
  for (auto& source : sources_) source.reset();
  EXPECT_THAT(receiver_->Finish(kSoon).status(),
              StatusIs(absl::StatusCode::kDataLoss,
                       HasSubstr("no tensor to go back to")));
}

TEST_F(CatchUpTest, WithoutMembersItEndsAtOnce) {
  Listen();
  ASSERT_OK_AND_ASSIGN(const auto caught_up,
                       receiver_->Finish(absl::InfiniteDuration()));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_FALSE(newcomer_.undone());
}

TEST_F(CatchUpTest, WhoDoesNotKnowTheSecretIsNoMember) {
  Listen();
  wrong_ = 1;
  Step(/*applied=*/false, /*begins=*/true);
  for (int i = 0; i < 1000 && sources_[0]->active(); ++i) Step();
  EXPECT_FALSE(sources_[0]->active());
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_FALSE(newcomer_.undone()) << "it has begun to take the state";
}

// One that is stopped, for example: its system accepts the connection.
TEST_F(CatchUpTest, ANewcomerThatTakesNothingIsDropped) {
  Listen();
  ASSERT_OK_AND_ASSIGN(const TcpListener stopped, ListenTcp("127.0.0.1"));
  for (std::string& address : addresses_) {
    address = absl::StrCat("127.0.0.1:", stopped.address.port);
  }
  Step(/*applied=*/false, /*begins=*/true);
  EXPECT_TRUE(sources_[0]->active());
  EXPECT_FALSE(Settled());
  int steps = 0;
  while (steps < 1000 && sources_[0]->active()) {
    Step();
    ++steps;
  }
  EXPECT_FALSE(sources_[0]->active()) << "after " << steps << " steps";
  EXPECT_TRUE(Settled());
}

}  // namespace
}  // namespace coxswain::catch_up
