#include "client/session/peer_reports.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PeerReportsTest : public testing::Test {
 protected:
  bool Send(const v1::AttachRequest& request) {
    if (!open_) return false;
    const auto& ranks = request.peers_broken().ranks();
    sent_.emplace_back(ranks.begin(), ranks.end());
    return true;
  }

  bool open_ = true;
  std::vector<std::vector<int>> sent_;
  PeerReports reports_{
      1, 5, [this](const v1::AttachRequest& request) { return Send(request); }};
};

TEST_F(PeerReportsTest, EachIsReportedOnce) {
  reports_.Report({2, 1, 5, -1});  // itself, and no rank: not reported
  reports_.Report({2, 3});
  reports_.SendPending();
  EXPECT_THAT(sent_, ElementsAre(ElementsAre(2), ElementsAre(3)));
}

TEST_F(PeerReportsTest, AfterALostStreamOnlyUnsentReportsAreSent) {
  reports_.Report({2});
  open_ = false;
  reports_.Report({4});
  reports_.Report({0});
  reports_.SendPending();
  open_ = true;
  sent_.clear();
  reports_.SendPending();
  reports_.SendPending();
  EXPECT_THAT(sent_, ElementsAre(ElementsAre(0, 4)));
}

TEST_F(PeerReportsTest, NothingIsSentOnceItHasStopped) {
  open_ = false;
  reports_.Report({2});
  open_ = true;
  reports_.Stop();
  reports_.SendPending();
  reports_.Report({3});
  EXPECT_THAT(sent_, IsEmpty());
}

}  // namespace
}  // namespace coxswain
