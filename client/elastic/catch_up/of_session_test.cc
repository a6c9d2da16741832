// The ends of a worker's session.

#include <memory>
#include <string>

#include "base/host_name.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/elastic/catch_up/catch_up_fixture.h"
#include "client/elastic/catch_up/receiver.h"
#include "client/elastic/catch_up/source.h"
#include "client/session/session_test_support.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up {
namespace {

using ::testing::StartsWith;

class Fives : public RandomSource {
 public:
  uint64_t Next() override { return 5; }
};

TEST(ReceiverOfSessionTest, ListensAtTheWorkersAddress) {
  Fives random;
  Program newcomer(1);
  SessionOptions session;
  session.coordinator = "no-such-host.invalid:4711";
  session.address = "127.0.0.2";
  session.random = &random;
  ASSERT_OK_AND_ASSIGN(const auto receiver,
                       Receiver::ListenFor(session, &newcomer));
  EXPECT_THAT(receiver->address(), StartsWith("127.0.0.2:"));
  EXPECT_EQ(receiver->secret(), 5U);
}

TEST(ReceiverOfSessionTest, WithoutOneItListensTowardsTheCoordinator) {
  Program newcomer(1);
  SessionOptions session;
  session.coordinator = "127.0.0.1:4711";
  ASSERT_OK_AND_ASSIGN(const auto receiver,
                       Receiver::ListenFor(session, &newcomer));
  EXPECT_THAT(receiver->address(), StartsWith("127.0.0.1:"));
  session.coordinator = "127.0.0.1";
  EXPECT_EQ(Receiver::ListenFor(session, &newcomer).status().code(),
            absl::StatusCode::kInvalidArgument);
}

using SourceOfSessionTest = SessionTest;

TEST_F(SourceOfSessionTest, IsTheMember) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Session> session, Join());
  const Source::Options options = Source::OptionsOf(*session, 9);
  EXPECT_EQ(options.rank, session->rank());
  EXPECT_EQ(options.world_size, 1);
  EXPECT_EQ(options.generation, 7);
  EXPECT_EQ(options.lineage, 9);
  EXPECT_EQ(options.host, HostName());
  EXPECT_FALSE(options.copies_beside_training);
}

}  // namespace
}  // namespace coxswain::catch_up
