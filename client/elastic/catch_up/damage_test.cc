// What a newcomer does with pieces that do not arrive as they were sent.

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "client/elastic/catch_up/catch_up_fixture.h"
#include "client/elastic/catch_up/damaged_network_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Of a number in it: of its largest bits.
constexpr int64_t kByte = 1006;

class CatchUpDamageTest : public CatchUpTest {
 protected:
  // Puts a network that damages one byte between this member and the newcomer.
  std::unique_ptr<DamagedNetwork> NetworkOf(
      int rank, const DamagedNetwork::Place& place) {
    auto network = std::make_unique<DamagedNetwork>(
        addresses_[rank], std::vector<DamagedNetwork::Place>{place});
    addresses_[rank] = network->address();
    return network;
  }
  void BeginWithMomenta() {
    Step();
    sent_ = 0;
    Step(/*applied=*/true, /*begins=*/true);
  }
  // Trains until the newcomer is in step, and on to the step of which this
  // piece of the averages is damaged; until rank 0 knows what it lacks.
  void TrainToDamage(int rank, int64_t piece) {
    constexpr int kApplied = 30;
    Listen();
    network_ = NetworkOf(rank, {Kind::kAverages, piece, kByte, kApplied});
    BeginWithMomenta();
    TrainUntilSettled();
    int applied = sent_ - (sent_ + 1) / 3;  // by TrainUntilSettled
    ASSERT_LT(applied, kApplied);
    for (; applied < kApplied; ++applied) {
      ASSERT_TRUE(Settled());
      Step();
      newcomer_.Await(sent_);
    }
    const absl::Time end = Clock::Real()->Now() + kSoon;
    while (Settled() && Clock::Real()->Now() < end) std::this_thread::yield();
    EXPECT_FALSE(Settled()) << "the regroup would not wait";
  }

  std::unique_ptr<DamagedNetwork> network_;
};

TEST_F(CatchUpDamageTest, ADamagedPieceComesFromAnotherMember) {
  Listen();
  const auto network = NetworkOf(1, {Kind::kState, 1, kByte});
  BeginWithMomenta();
  TrainUntilSettled(/*damage=*/true);
  EXPECT_THAT(Damage(), AllOf(HasSubstr("piece 1 of the state"),
                              HasSubstr("from rank 1 on host-1")));
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(), ElementsAre(HasSubstr("rank 1 on host-1")));
}

// Until it comes again, steps use wrong momenta for parameters that are right.
TEST_F(CatchUpDamageTest, WhatDamagedMomentaWereUsedForComesToo) {
  Listen();
  const auto network = NetworkOf(1, {Kind::kState, 3, kByte});
  BeginWithMomenta();
  TrainUntilSettled(/*damage=*/true);
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(HasSubstr("piece 3 of the state")));
}

TEST_F(CatchUpDamageTest, WhatTheOptimizerMadeOfDamagedElementsComesToo) {
  Listen();
  const auto network = NetworkOf(1, {Kind::kState, 1, kByte});
  // The first step after it makes momenta, of the parameters too.
  Step(/*applied=*/false, /*begins=*/true);
  TrainUntilSettled(/*damage=*/true);
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(HasSubstr("piece 1 of the state")));
}

TEST_F(CatchUpDamageTest, APieceThatIsDamagedAgainIsAskedForAgain) {
  Listen();
  const auto network = NetworkOf(1, {Kind::kState, 3, kByte});
  // Rank 0 sends it only when it is asked.
  const auto other = NetworkOf(0, {Kind::kState, 3, kByte});
  BeginWithMomenta();
  TrainUntilSettled(/*damage=*/true);
  ExpectCaughtUp();
  EXPECT_THAT(
      receiver_->damage(),
      ElementsAre(AllOf(HasSubstr("piece 3"), HasSubstr("from rank 1")),
                  AllOf(HasSubstr("piece 3"), HasSubstr("from rank 0"))));
}

TEST_F(CatchUpDamageTest, DamagedElementsOfSeveralMembersComeBack) {
  Listen();
  const auto network = NetworkOf(1, {Kind::kState, 3, kByte});
  const auto other = NetworkOf(0, {Kind::kState, 0, kByte});
  BeginWithMomenta();
  TrainUntilSettled(/*damage=*/true);
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(HasSubstr("piece 0"), HasSubstr("piece 3")));
}

TEST_F(CatchUpDamageTest,
       WhatDamagedAveragesWereUsedForComesFromAnotherMember) {
  Listen();
  const auto network = NetworkOf(1, {Kind::kAverages, 1, kByte});
  Step(/*applied=*/false, /*begins=*/true);
  TrainUntilSettled(/*damage=*/true);
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(AllOf(HasSubstr("piece 1 of the averages"),
                                HasSubstr("rank 1 on host-1"))));
}

TEST_F(CatchUpDamageTest, TheRegroupWaitsForWhatAnotherMemberSendsAgain) {
  TrainToDamage(/*rank=*/0, /*piece=*/2);
  TrainUntilSettled();
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(HasSubstr("piece 2 of the averages")));
}

TEST_F(CatchUpDamageTest, WhatWasDamagedMayComeWithTheLastStep) {
  TrainToDamage(/*rank=*/1, /*piece=*/1);
  ExpectCaughtUp();
  EXPECT_THAT(receiver_->damage(),
              ElementsAre(HasSubstr("piece 1 of the averages")));
}

TEST_F(CatchUpDamageTest, TooMuchDamageIsGivenUp) {
  const Program before(5);
  Listen(/*max_damaged=*/0);
  const auto network = NetworkOf(1, {Kind::kState, 1, kByte});
  Step(/*applied=*/false, /*begins=*/true);
  for (int i = 0; i < 1000 && sources_[0]->active(); ++i) Step();
  EXPECT_FALSE(sources_[0]->active()) << "it still sends";
  EXPECT_TRUE(Settled()) << "the regroup would wait for it";
  ASSERT_OK_AND_ASSIGN(const auto caught_up, receiver_->Finish(kSoon));
  EXPECT_FALSE(caught_up.has_value());
  EXPECT_TRUE(newcomer_.undone());
  EXPECT_TRUE(newcomer_ == before);
}

}  // namespace
}  // namespace coxswain::catch_up
