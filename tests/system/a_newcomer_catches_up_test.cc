// A worker that is added while others train takes their state meanwhile.

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cancel_signal.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "client/comm/tcp/tcp_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/newcomer_fixture.h"

namespace coxswain::torch::catches_up_test {
namespace {

using ::testing::SizeIs;

TEST_F(ANewcomerCatchesUpTest, WithAdam) { ExpectItIsTakenInAsAMember(); }

TEST_F(ANewcomerCatchesUpTest, WithMomenta) {
  make_optimizer_ = MakeSgd;
  ExpectItIsTakenInAsAMember();
}

TEST_F(ANewcomerCatchesUpTest, ThatTakesNothingCopiesTheStateAsBefore) {
  StartCoordinator(/*catch_up_timeout=*/absl::Milliseconds(500));
  ASSERT_OK_AND_ASSIGN(const TcpListener stopped, ListenTcp("127.0.0.1"));
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& newcomer = Add(2);
  newcomer.catch_up = false;
  newcomer.change = [&stopped](SessionOptions* session) {
    session->catch_up_address =
        absl::StrCat("127.0.0.1:", stopped.address.port);
    session->catch_up_secret = 1;
  };
  TrainWithNewcomer(a, b, newcomer);
  EXPECT_FALSE(newcomer.reports[0].caught_up);
  EXPECT_TRUE(newcomer.reports[0].copied);
}

TEST_F(ANewcomerCatchesUpTest, WhoseMembersSendNothingCopiesTheStateAsBefore) {
  StartCoordinator();
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& newcomer = Add(2);
  a.catch_up = b.catch_up = false;
  TrainWithNewcomer(a, b, newcomer);
  EXPECT_FALSE(newcomer.reports[0].caught_up);
  EXPECT_TRUE(newcomer.reports[0].copied);
}

TEST_F(ANewcomerCatchesUpTest, ThatEndsMeanwhileIsNotNoticed) {
  StartCoordinator();
  ASSERT_OK_AND_ASSIGN(const TcpListener address, ListenTcp("127.0.0.1"));
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& newcomer = Add(2);
  newcomer.catch_up = false;
  const auto end = std::make_shared<CancelSignal>();
  newcomer.change = [&](SessionOptions* session) {
    session->catch_up_address =
        absl::StrCat("127.0.0.1:", address.address.port);
    session->catch_up_secret = 1;
    session->cancel = end;
  };
  // Once a member has connected to it, it ends: 50 steps later all stop.
  int64_t ended_at = 0;
  std::vector<UniqueFd> members;
  a.before_step = [&](ElasticTraining& t) {
    if (t.step() == 20) Start(newcomer);
    if (ended_at > 0) {
      if (t.step() == ended_at + 50) {
        t.session().schedule().RequestStop("50 steps after its end");
      }
      return;
    }
    auto member = AcceptTcp(address.socket);
    if (!member.ok() || !member->valid()) return;
    // Not closed before the coordinator knows of its end.
    members.push_back(*std::move(member));
    end->Raise(absl::CancelledError("it is killed"));
    newcomer.thread.join();
    ended_at = t.step();
  };
  Start(a);
  Start(b);
  a.thread.join();
  b.thread.join();
  EXPECT_OK(a.status);
  EXPECT_OK(b.status);
  EXPECT_GT(ended_at, 20);
  EXPECT_GE(a.done, ended_at + 50);
  EXPECT_THAT(a.reports, SizeIs(1)) << "there was a regroup";
  EXPECT_TRUE(BitsOf(*a.net) == BitsOf(*b.net));
}

}  // namespace
}  // namespace coxswain::torch::catches_up_test
