#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "schedule/step_gate.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"

// Sessions that go on agreeing while there is no coordinator, over loopback,
// each rank a thread.

namespace coxswain::fallback_test {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// What a rank has received: step, commit, plan version, stop.
using Received = std::tuple<int64_t, bool, int64_t, std::string>;

class FallbackIntegrationTest : public ::testing::Test {
 protected:
  FallbackIntegrationTest() {
    options_.listen = "127.0.0.1:0";
    std::string name =
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::replace(name.begin(), name.end(), '/', '_');
    options_.state_dir = absl::StrCat(::testing::TempDir(), "/", name);
    StartCoordinator();
    options_.listen = absl::StrCat("127.0.0.1:", coordinator_->port());
  }
  void StartCoordinator() {
    auto started = server::Coordinator::Start(options_);
    ASSERT_OK(started);
    coordinator_ = std::move(started).value();
  }
  void StopCoordinator() { coordinator_.reset(); }

  void JoinAll(int count, schedule::Enforcement enforcement,
               bool commit_vote = false, bool fallback = true) {
    JobManifest manifest;
    manifest.terms.enforcement = enforcement;
    manifest.terms.commit_vote = commit_vote;
    sessions_.resize(static_cast<size_t>(count));
    received_.resize(static_cast<size_t>(count));
    InThreads(count, [&](int slot) {
      SessionOptions options;
      options.coordinator = options_.listen;
      options.job = "mnist";
      options.identity = {"host-a", slot};
      options.host = "host-a";
      options.world_size = count;
      options.join_timeout = kTimeout;
      options.retry_base = absl::Milliseconds(1);
      options.retry_cap = absl::Milliseconds(20);
      options.fallback = fallback;
      options.fallback_after = absl::Milliseconds(20);
      auto session = Session::Join(options, manifest);
      ASSERT_OK(session);
      sessions_[static_cast<size_t>((*session)->rank())] = std::move(*session);
    });
  }

  void Steps(int rank, int64_t first, int64_t end) {
    const auto index = static_cast<size_t>(rank);
    schedule::StepGate& gate = **sessions_[index]->schedule().Gate();
    for (int64_t step = first; step < end; ++step) {
      const schedule::Plan plan = sessions_[index]->schedule().plan();
      schedule::Ticket ticket;
      ticket.step = step;
      ticket.hook = plan.hook;
      ticket.plan_version = plan.version;
      ticket.window = ticket.micro_batches = plan.accumulation_steps;
      ticket.micro = ticket.window - 1;
      ticket.weight = ticket.window;
      if (step % 7 == rank) ticket.skip = "a gradient is nan";
      ASSERT_OK(gate.Announce(ticket));
      ASSERT_OK(gate.AwaitGrant());
      schedule::Vote vote;
      vote.commit = plan.terms.commit_vote && step % 11 == rank ? false : true;
      const auto decision = gate.Decide(vote);
      ASSERT_OK(decision);
      received_[index].emplace_back(step, decision->commit, plan.version,
                                    decision->stop);
      NoteStep(step);
    }
  }
  void AllStep(int64_t first, int64_t end) {
    InThreads(static_cast<int>(sessions_.size()),
              [&](int rank) { Steps(rank, first, end); });
    for (const auto& received : received_) EXPECT_EQ(received, received_[0]);
    EXPECT_EQ(static_cast<int64_t>(received_[0].size()), end);
  }

  void NoteStep(int64_t step) {
    MutexLock lock(&mutex_);
    at_ = std::max(at_, step);
    moved_.NotifyAll();
  }
  bool AwaitStep(int64_t step) {
    MutexLock lock(&mutex_);
    return moved_.WaitFor(&mutex_, kTimeout,
                          [this, step]() { return at_ >= step; });
  }
  bool AwaitEvent(int rank, SessionEvent::Kind kind) {
    while (true) {
      const auto event =
          sessions_[static_cast<size_t>(rank)]->events().Next(kTimeout);
      EXPECT_OK(event);
      if (!event.ok()) return false;
      if (event->kind == kind) return true;
    }
  }

  server::CoordinatorOptions options_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::vector<std::unique_ptr<Session>> sessions_;  // by rank
  std::vector<std::vector<Received>> received_;     // likewise
  Mutex mutex_;
  CondVar moved_;
  int64_t at_ ABSL_GUARDED_BY(mutex_) = -1;
};

class FallbackEnforcementTest
    : public FallbackIntegrationTest,
      public ::testing::WithParamInterface<schedule::Enforcement> {};

TEST_P(FallbackEnforcementTest, RanksGoOnWithoutACoordinator) {
  JoinAll(3, GetParam(), /*commit_vote=*/true);
  AllStep(0, 20);
  StopCoordinator();
  AllStep(20, 220);
  StartCoordinator();
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(AwaitEvent(rank, SessionEvent::Kind::kReattached));
  }
  AllStep(220, 420);
  InThreads(3, [&](int rank) {
    EXPECT_OK(sessions_[static_cast<size_t>(rank)]->Leave("done"));
  });
}
INSTANTIATE_TEST_SUITE_P(All, FallbackEnforcementTest,
                         ::testing::Values(schedule::Enforcement::kAudit,
                                           schedule::Enforcement::kStrict));

// It is stopped and started at any moment of the rounds.
TEST_P(FallbackEnforcementTest, CoordinatorsComeAndGo) {
  constexpr int64_t kSteps = 600;
  JoinAll(3, GetParam());
  InThreads(4, [&](int rank) {
    if (rank < 3) return Steps(rank, 0, kSteps);
    for (int64_t step = 50; step < kSteps; step += 100) {
      ASSERT_TRUE(AwaitStep(step));
      StopCoordinator();
      ASSERT_TRUE(AwaitStep(step + 20));
      StartCoordinator();
    }
  });
  for (const auto& received : received_) EXPECT_EQ(received, received_[0]);
  EXPECT_EQ(received_[0].size(), static_cast<size_t>(kSteps));
  for (const auto& session : sessions_) EXPECT_OK(session->status());
}

TEST_F(FallbackIntegrationTest, AWorkerAloneGoesOn) {
  JoinAll(1, schedule::Enforcement::kStrict);
  AllStep(0, 5);
  StopCoordinator();
  AllStep(5, 105);
  StartCoordinator();
  ASSERT_TRUE(AwaitEvent(0, SessionEvent::Kind::kReattached));
  AllStep(105, 205);
  EXPECT_OK(sessions_[0]->Leave("done"));
}

// A rank that leaves waits for the coordinator, and does not hold up the
// others.
TEST_F(FallbackIntegrationTest, AStopThatTheyAgreeOnIsTheSameForAll) {
  JoinAll(2, schedule::Enforcement::kAudit);
  AllStep(0, 5);
  StopCoordinator();
  AllStep(5, 10);
  sessions_[1]->schedule().RequestStop("a signal");
  AllStep(10, 11);
  EXPECT_NE(std::get<3>(received_[0].back()), "");
  InThreads(3, [&](int rank) {
    if (rank == 2) return StartCoordinator();
    EXPECT_OK(sessions_[static_cast<size_t>(rank)]->Leave("stopped"));
  });
}

TEST_F(FallbackIntegrationTest, ItCanBeSwitchedOff) {
  JoinAll(2, schedule::Enforcement::kAudit, /*commit_vote=*/false,
          /*fallback=*/false);
  AllStep(0, 5);
  StopCoordinator();
  InThreads(3, [&](int rank) {
    if (rank < 2) return Steps(rank, 5, 6);
    EXPECT_FALSE([&]() {
      MutexLock lock(&mutex_);
      return moved_.WaitFor(&mutex_, absl::Milliseconds(500),
                            [this]() { return at_ >= 5; });
    }());
    StartCoordinator();
  });
  EXPECT_EQ(received_[0], received_[1]);
}

}  // namespace
}  // namespace coxswain::fallback_test
