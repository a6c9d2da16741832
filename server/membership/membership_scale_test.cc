// A job of as many members as may be: nothing in the membership may cost
// each of them something for each of the others.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "server/membership/membership_fixture.h"
#include "server/state/group_commit.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr int kMembers = 10'000;
constexpr int kPerHost = 8;

class ScaleTest : public MembershipTest {
 protected:
  void SetUp() override {
    MembershipTest::SetUp();
    for (int i = 0; i < kMembers; ++i) {
      Worker* const worker = MakeElastic(kMembers / 2, kMembers, i % kPerHost,
                                         absl::StrCat("host-", i / kPerHost));
      worker->request.host = std::string(200, 'h');
      worker->request.topology = {absl::StrCat("rack", i / 160)};
      team_.push_back(worker);
      Join(worker);
    }
    for (Worker* worker : team_) Attach(worker);
  }
  std::vector<Worker*> team_;
};

TEST_F(ScaleTest, LosesSomeAndGoesOn) {
  ASSERT_EQ(team_.back()->joined().rank, kMembers - 1);
  Beat(team_);
  membership_->Tick();
  for (int i = 0; i < 10; ++i) {
    membership_->ReportExit(team_[i * 100]->exit(9));
  }
  for (int i = 0; i < kMembers; ++i) {
    if (i >= 1000 || i % 100 != 0) Rejoin(team_[i]);
  }
  const JoinResult& joined = team_[1]->joined();
  EXPECT_EQ(joined.generation, Generation(2));
  EXPECT_EQ(joined.members.get(), team_.back()->joined().members.get())
      << "one list for all";
  EXPECT_THAT(*joined.members, SizeIs(kMembers - 10));
  EXPECT_THAT(*joined.lost, SizeIs(10));
  EXPECT_EQ(joined.lost_count, 10);
  EXPECT_EQ(team_[1]->joined().rank, 1);
}

TEST_F(ScaleTest, NotAllThatAreLostAreNamed) {
  for (int i = 0; i < 100; ++i) membership_->ReportExit(team_[i]->exit(9));
  for (int i = 100; i < kMembers; ++i) Rejoin(team_[i]);
  EXPECT_THAT(*team_[100]->joined().lost, SizeIs(64));
  EXPECT_EQ(team_[100]->joined().lost_count, 100);
  Restart();
  Join(team_[100]);
  EXPECT_EQ(team_[100]->joined().generation, Generation(2));
  EXPECT_THAT(*team_[100]->joined().lost, SizeIs(64));
  EXPECT_EQ(team_[100]->joined().lost_count, 100);
}

TEST_F(ScaleTest, IsKeptOverARestartAndLeaves) {
  for (int i = 0; i < kMembers / 2; ++i) {
    ASSERT_OK(Leave(team_[i], true));
  }
  EXPECT_THAT(team_.back()->events, IsEmpty())
      << "a departure is not told to ten thousand others";
  Restart();
  EXPECT_THAT(observer_.resumed.back().at(0).left, SizeIs(kMembers / 2));
  for (int i = kMembers / 2; i < kMembers; ++i) {
    Attach(team_[i]);
    Fence fence = team_[i]->fence();
    fence.term = membership_->term();
    ASSERT_OK(membership_->Leave(fence, "done", false, true));
  }
  EXPECT_EQ(Description().state, JobState::kEnded);
  EXPECT_THAT(Description().last_event, HasSubstr("all 10000 members"));
}

TEST_F(ScaleTest, AnEndThatCouldNotBeWrittenFitsIntoItsBatches) {
  for (int i = 0; i < 1000; ++i) ASSERT_OK(Leave(team_[i], false));
  store_.FailWrites(absl::UnavailableError("disk full"));
  membership_->ReportExit(team_.back()->exit(9));
  store_.FailWrites(absl::OkStatus());
  Pass(absl::Seconds(1));
  Restart();
  EXPECT_THAT(observer_.resumed.back(), IsEmpty());
  EXPECT_EQ(Description().members.back().state, MemberState::kLost);
}

// With the writer of a coordinator, whose callbacks come from a thread of its
// own while others wait in commits.
class ThreadedTest : public MembershipTest {
 protected:
  void TearDown() override {
    membership_.reset();
    plans_.reset();
    commit_.reset();
  }
  // A new coordinator on the same state.
  void Reopen() {
    TearDown();
    commit_ = std::make_unique<GroupCommit>(&store_);
    ASSERT_OK_AND_ASSIGN(plans_, PlanStore::Load(PlanOptions(), commit_.get()));
    ASSERT_OK_AND_ASSIGN(
        membership_, Membership::Open(options_, {&clock_, &random_,
                                                 commit_.get(), plans_.get()}));
    membership_->AddObserver(&log_);
    ASSERT_OK(membership_->Resume());
  }
  void JoinAndCount(Worker* worker) {
    membership_->Join(worker->request, [this, worker](auto result) {
      MutexLock lock(&mutex_);
      worker->answers.push_back(std::move(result));
      ++answered_;
      changed_.NotifyAll();
    });
  }
  bool AwaitAnswers(size_t count) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, absl::Minutes(1),
        [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return answered_ >= count; });
  }
  // Each thread calls `act` with the workers whose turn it is.
  static void InThreads(const std::vector<Worker*>& team,
                        const std::function<void(Worker*)>& act) {
    constexpr size_t kThreads = 8;
    std::vector<std::thread> threads;
    for (size_t first = 0; first < kThreads; ++first) {
      threads.emplace_back([&, first] {
        for (size_t i = first; i < team.size(); i += kThreads) act(team[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::unique_ptr<GroupCommit> commit_;
  EventLog log_;
  Mutex mutex_;
  CondVar changed_;
  size_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(ThreadedTest, ManyLeaveAndComeBackAtOnce) {
  Reopen();
  std::vector<Worker*> team;
  for (int slot = 0; slot < 64; ++slot) {
    team.push_back(MakeElastic(1, 64, slot));
  }
  for (int round = 1; round <= 20; ++round) {
    InThreads(team, [&](Worker* worker) { JoinAndCount(worker); });
    ASSERT_TRUE(AwaitAnswers(round * team.size()));
    for (Worker* worker : team) {
      ASSERT_EQ(worker->answers.size(), static_cast<size_t>(round));
      ASSERT_OK(worker->answers.back());
      EXPECT_EQ(worker->joined().generation, Generation(round));
      worker->request.after_generation = Generation(round);
    }
    InThreads(team, [&](Worker* worker) {
      Fence fence = worker->fence();
      EXPECT_OK(membership_->Leave(fence, "next", false, /*rejoin=*/true));
      membership_->Tick();
      EXPECT_TRUE(membership_->Describe("job").ok());
    });
    EXPECT_EQ(Description().state, JobState::kEnded);
  }
  TearDown();
  const std::vector<std::string> events = log_.events();
  ASSERT_THAT(events, SizeIs(20 * (64 + 2)));
  for (size_t i = 0; i < events.size(); ++i) {
    const size_t round = i / 66 + 1;
    if (i % 66 == 0) {
      EXPECT_EQ(events[i], absl::StrCat("began ", round));
    } else if (i % 66 == 65) {
      EXPECT_EQ(events[i], absl::StrCat("ended ", round));
    } else {
      EXPECT_THAT(events[i], StartsWith(absl::StrCat("left ", round, " ")));
    }
  }
}

TEST_F(ThreadedTest, ACoordinatorCanGoWhileAGenerationIsCommitted) {
  for (int round = 0; round < 50; ++round) {
    Reopen();
    Worker* const worker = MakeElastic(1, 1, 0);
    worker->request.job = absl::StrCat("job-", round);
    // Its answer comes, or does not.
    membership_->Join(worker->request, [](const auto&) {});
  }
  Reopen();
  for (const JobSummary& job : membership_->Summaries()) {
    EXPECT_EQ(job.state, JobState::kRunning);
  }
}

}  // namespace
}  // namespace coxswain::server
