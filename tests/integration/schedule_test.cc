#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_matchers.h"
#include "client/rpc/forwarding_coordinator_stub.h"
#include "client/rpc/stub_factory.h"
#include "client/session/session.h"
#include "gtest/gtest.h"
#include "schedule/step_gate.h"
#include "server/coordinator.h"
#include "tests/support/in_threads.h"
#include "transport/error_detail.h"

// The step gates of sessions against a real coordinator in the same process,
// over loopback, each rank a thread.

namespace coxswain::schedule_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// A worker's connection, which the test breaks and lets come back.
class Cable {
 public:
  std::unique_ptr<AttachStream> Attach(
      CoordinatorStub& stub, StreamCallbacks<v1::AttachEvent> callbacks) {
    auto link = std::make_shared<Link>();
    link->on_end = callbacks.on_end;
    {
      MutexLock lock(&mutex_);
      if (!broken_) link->stream = stub.Attach(callbacks);
      link_ = link;
    }
    if (link->stream == nullptr) callbacks.on_end(Unavailable());
    return std::make_unique<End>(link);
  }
  void Break() {
    std::shared_ptr<Link> link;
    {
      MutexLock lock(&mutex_);
      broken_ = true;
      link = link_;
    }
    link->Break();
  }
  void Mend() {
    MutexLock lock(&mutex_);
    broken_ = false;
  }

 private:
  struct Link {
    // Ends it as a lost connection does, unless the client has closed it.
    void Break() {
      MutexLock lock(&mutex);
      if (stream == nullptr) return;
      stream.reset();
      on_end(Unavailable());
    }
    Mutex mutex;
    std::unique_ptr<AttachStream> stream;
    std::function<void(const absl::Status&)> on_end;
  };
  class End : public AttachStream {
   public:
    explicit End(std::shared_ptr<Link> link) : link_(std::move(link)) {}
    ~End() override {
      MutexLock lock(&link_->mutex);
      link_->stream.reset();
    }
    bool Send(const v1::AttachRequest& request) override {
      MutexLock lock(&link_->mutex);
      return link_->stream != nullptr && link_->stream->Send(request);
    }

   private:
    const std::shared_ptr<Link> link_;
  };
  static absl::Status Unavailable() {
    return absl::UnavailableError("the test has cut the cable");
  }

  Mutex mutex_;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Link> link_ ABSL_GUARDED_BY(mutex_);
};

// A stub whose Attach stream goes through a cable.
class CabledStub : public ForwardingCoordinatorStub {
 public:
  CabledStub(std::shared_ptr<CoordinatorStub> stub,
             std::shared_ptr<Cable> cable)
      : ForwardingCoordinatorStub(std::move(stub)), cable_(std::move(cable)) {}
  std::unique_ptr<AttachStream> Attach(
      StreamCallbacks<v1::AttachEvent> callbacks) override {
    return cable_->Attach(stub(), std::move(callbacks));
  }

 private:
  const std::shared_ptr<Cable> cable_;
};

class ScheduleIntegrationTest : public ::testing::Test {
 protected:
  ScheduleIntegrationTest() {
    options_.listen = "127.0.0.1:0";
    options_.state_dir = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    StartCoordinator();
    options_.listen = absl::StrCat("127.0.0.1:", coordinator_->port());
  }
  void StartCoordinator() {
    auto started = server::Coordinator::Start(options_);
    ASSERT_OK(started);
    coordinator_ = std::move(started).value();
    operator_ = ConnectCoordinator(
        absl::StrCat("127.0.0.1:", coordinator_->port()), {});
  }

  void JoinAll(int count, const schedule::Terms& terms) {
    JobManifest manifest;
    manifest.terms = terms;
    for (int rank = 0; rank < count; ++rank) {
      cables_.push_back(std::make_shared<Cable>());
    }
    sessions_.resize(count);
    InThreads(count, [&](int slot) {
      SessionOptions options;
      options.coordinator = operator_->address();
      options.job = "mnist";
      options.identity = {"host-a", slot};
      options.host = "host-a";
      options.world_size = count;
      options.join_timeout = kTimeout;
      options.retry_cap = absl::Milliseconds(10);
      options.retry_base = absl::Milliseconds(1);
      options.stub_factory = [this, slot](const std::string& address) {
        return std::make_shared<CabledStub>(ConnectWithoutRetries(address),
                                            cables_[slot]);
      };
      auto session = Session::Join(options, manifest);
      ASSERT_OK(session);
      ASSERT_EQ((*session)->rank(), slot) << "slots of one host are in order";
      sessions_[slot] = std::move(*session);
    });
    plans_.clear();
    for (const auto& session : sessions_) plans_.push_back(session->plan());
  }
  schedule::Terms TermsWith(schedule::Enforcement enforcement,
                            bool commit_vote = false) {
    schedule::Terms terms;
    terms.enforcement = enforcement;
    terms.commit_vote = commit_vote;
    terms.progress_timeout = kTimeout;
    return terms;
  }

  schedule::StepGate& GateOf(int rank) {
    return **sessions_[rank]->schedule().Gate();
  }

  schedule::Ticket TicketOf(int rank, int64_t step) {
    schedule::Ticket ticket;
    ticket.step = step;
    ticket.hook = plans_[rank].hook;
    ticket.plan_version = plans_[rank].version;
    ticket.window = plans_[rank].accumulation_steps;
    ticket.micro_batches = ticket.window;
    ticket.micro = ticket.window - 1;
    ticket.weight = ticket.window;
    return ticket;
  }
  absl::Status Announce(int rank, int64_t step) {
    return GateOf(rank).Announce(TicketOf(rank, step));
  }
  // Makes a whole round of one rank, which follows the plan; returns the
  // decision.
  absl::StatusOr<schedule::Decision> Step(int rank, int64_t step,
                                          const schedule::Vote& vote = {}) {
    absl::Status status = Announce(rank, step);
    if (status.ok()) status = GateOf(rank).AwaitGrant();
    if (!status.ok()) return status;
    auto decision = GateOf(rank).Decide(vote);
    if (decision.ok() && decision->plan.has_value()) {
      plans_[rank] = *decision->plan;
    }
    return decision;
  }

  v1::JobDescription Describe() {
    v1::DescribeRequest request;
    request.set_job("mnist");
    const auto response = operator_->Describe(request, {});
    EXPECT_OK(response);
    if (!response.ok() || response->jobs().empty()) return {};
    cluster_id_ = response->cluster_id();
    term_ = response->term();
    return response->jobs(0);
  }
  void AwaitState(int rank, const std::string& state) {
    const absl::Time deadline = Clock::Real()->Now() + kTimeout;
    std::string last;
    while (last != state && Clock::Real()->Now() < deadline) {
      last = Describe().members(rank).state();
    }
    EXPECT_EQ(last, state);
  }
  void Propose(const std::function<void(v1::Plan&)>& change, int64_t at_step) {
    const v1::JobDescription job = Describe();
    v1::ProposePlanRequest request;
    request.set_job("mnist");
    request.set_expected_version(job.plan().version());
    *request.mutable_plan() = job.plan();
    change(*request.mutable_plan());
    request.mutable_plan()->set_at_step(at_step);
    request.mutable_fence()->set_cluster_id(cluster_id_);
    request.mutable_fence()->set_term(term_);
    request.mutable_fence()->set_job("mnist");
    request.mutable_fence()->set_request_id(4711);
    EXPECT_OK(operator_->ProposePlan(request, {}));
  }

  server::CoordinatorOptions options_;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::shared_ptr<CoordinatorStub> operator_;
  std::string cluster_id_;
  int64_t term_ = 0;
  std::vector<std::shared_ptr<Cable>> cables_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<schedule::Plan> plans_;  // by rank
};

class EnforcementTest
    : public ScheduleIntegrationTest,
      public ::testing::WithParamInterface<schedule::Enforcement> {};

TEST_P(EnforcementTest, RoundsAreDecided) {
  JoinAll(2, TermsWith(GetParam()));
  InThreads(2, [&](int rank) {
    for (int64_t step = 0; step < 100; ++step) {
      ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, Step(rank, step));
      EXPECT_TRUE(decision.commit);
      EXPECT_EQ(decision.stop, "");
    }
  });
}
INSTANTIATE_TEST_SUITE_P(All, EnforcementTest,
                         ::testing::Values(schedule::Enforcement::kOff,
                                           schedule::Enforcement::kAudit,
                                           schedule::Enforcement::kStrict));

TEST_P(EnforcementTest, AMismatchIsReportedToBoth) {
  if (GetParam() == schedule::Enforcement::kOff)
    GTEST_SKIP() << "no tickets are compared";
  JoinAll(2, TermsWith(GetParam()));
  InThreads(2, [&](int rank) {
    ASSERT_OK(Step(rank, 0));
    const absl::Status status = Step(rank, rank == 0 ? 1 : 2).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                                 AllOf(HasSubstr("step"), HasSubstr("rank 1"),
                                       HasSubstr("train"))));
    const v1::ErrorDetail detail = DetailOf(status);
    EXPECT_EQ(detail.schedule_mismatch().round(), 1);
    EXPECT_EQ(sessions_[rank]->status(), status);
  });
}

TEST_F(ScheduleIntegrationTest, AMissingRankIsNamed) {
  schedule::Terms terms = TermsWith(schedule::Enforcement::kAudit);
  terms.progress_timeout = absl::Milliseconds(300);
  JoinAll(2, terms);
  EXPECT_THAT(Step(0, 0),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
}

TEST_F(ScheduleIntegrationTest, AVoteAgainstAStepSkipsItOnBoth) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit, /*commit_vote=*/true));
  InThreads(2, [&](int rank) {
    for (int64_t step = 0; step < 3; ++step) {
      schedule::Vote vote;
      vote.commit = rank != 1 || step != 1;
      if (!vote.commit) vote.reason = "the gradient is not finite";
      ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                           Step(rank, step, vote));
      EXPECT_EQ(decision.commit, step != 1);
      if (decision.commit) continue;
      EXPECT_THAT(decision.reason,
                  AllOf(HasSubstr("rank 1"), HasSubstr("not finite")));
    }
  });
}

TEST_F(ScheduleIntegrationTest, AStopReachesBothInTheSameRound) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit));
  std::vector<int64_t> stopped(2, -1);
  InThreads(2, [&](int rank) {
    for (int64_t step = 0; stopped[rank] < 0; ++step) {
      ASSERT_LT(step, 100);
      if (rank == 1 && step == 5) {
        sessions_[rank]->schedule().RequestStop("a signal");
      }
      ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, Step(rank, step));
      if (decision.stop.empty()) continue;
      EXPECT_THAT(decision.stop,
                  AllOf(HasSubstr("rank 1"), HasSubstr("a signal")));
      stopped[rank] = step;
    }
  });
  EXPECT_EQ(stopped, (std::vector<int64_t>{5, 5}));
}

TEST_F(ScheduleIntegrationTest, APlanLandsOnTheSameStepOfBoth) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit));
  std::vector<std::vector<int64_t>> versions(2);
  InThreads(2, [&](int rank) {
    for (int64_t step = 0; step < 300; ++step) {
      if (rank == 0 && step == 100) {
        Propose([](v1::Plan& plan) { plan.set_accumulation_steps(4); }, -1);
      }
      if (rank == 1 && step == 200) {
        Propose(
            [](v1::Plan& plan) {
              (*plan.mutable_terms())["enforcement"] = "strict";
            },
            250);
      }
      ASSERT_OK(Step(rank, step));
      versions[rank].push_back(plans_[rank].version);
    }
  });
  EXPECT_EQ(versions[0], versions[1]);
  EXPECT_EQ(plans_[0].accumulation_steps, 4);
  EXPECT_EQ(plans_[1].terms.enforcement, schedule::Enforcement::kStrict);
  // The decision on step 249 brings the plan that is in force from step 250.
  ASSERT_EQ(versions[0].size(), 300u);
  EXPECT_EQ(versions[0][248] + 1, versions[0][249]);
}

TEST_F(ScheduleIntegrationTest, AJobGoesOnWithoutEnforcement) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit));
  InThreads(2, [&](int rank) {
    for (int64_t step = 0; step < 20; ++step) {
      if (rank == 0 && step == 5) {
        Propose(
            [](v1::Plan& plan) {
              (*plan.mutable_terms())["enforcement"] = "off";
            },
            -1);
      }
      ASSERT_OK(Step(rank, step));
    }
  });
  EXPECT_EQ(plans_[0].terms.enforcement, schedule::Enforcement::kOff);
  EXPECT_EQ(plans_[1].terms.enforcement, schedule::Enforcement::kOff);
}

TEST_F(ScheduleIntegrationTest, ATicketOutlivesABrokenConnection) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit));
  cables_[0]->Break();
  AwaitState(0, "detached");
  ASSERT_OK(Announce(0, 0));  // into the void
  std::thread other([&]() { EXPECT_OK(Step(1, 0)); });
  cables_[0]->Mend();
  EXPECT_OK(GateOf(0).Decide({}));
  other.join();
}

TEST_F(ScheduleIntegrationTest, ALostDecisionIsReceivedAgain) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit));
  ASSERT_OK(Announce(0, 0));
  v1::WhyRequest why;
  why.set_job("mnist");
  for (bool received = false; !received;) {
    const auto response = operator_->Why(why, {});
    ASSERT_OK(response);
    received = response->ranks_size() > 0 && response->ranks(0).stream() != "";
  }
  cables_[0]->Break();
  AwaitState(0, "detached");
  ASSERT_OK(Step(1, 0));  // decided, and sent to no other rank
  cables_[0]->Mend();
  ASSERT_OK(GateOf(0).Decide({}));
  InThreads(2, [&](int rank) { EXPECT_OK(Step(rank, 1)); });
}

TEST_F(ScheduleIntegrationTest, BrokenConnectionsLoseNoRound) {
  JoinAll(2, TermsWith(schedule::Enforcement::kStrict, /*commit_vote=*/true));
  InThreads(3, [&](int rank) {
    for (int64_t step = 0; step < 50; ++step) {
      if (rank < 2) {
        ASSERT_OK_AND_ASSIGN(const schedule::Decision decision,
                             Step(rank, step));
        EXPECT_TRUE(decision.commit);
      } else {
        cables_[step % 2]->Break();
        cables_[step % 2]->Mend();
      }
    }
  });
}

TEST_P(EnforcementTest, TrainingGoesOnThroughRestartsOfTheCoordinator) {
  constexpr int kSteps = 200;
  JoinAll(3, TermsWith(GetParam(), GetParam() != schedule::Enforcement::kOff));
  Mutex mutex;
  CondVar moved;
  int64_t at = 0;
  InThreads(4, [&](int rank) {
    if (rank == 3) {
      for (int64_t step : {20, 70, 120}) {
        {
          MutexLock lock(&mutex);
          ASSERT_TRUE(moved.WaitFor(&mutex, kTimeout,
                                    [&at, step]() { return at >= step; }));
        }
        coordinator_.reset();
        StartCoordinator();
      }
      return;
    }
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, Step(rank, step));
      EXPECT_TRUE(decision.commit);
      MutexLock lock(&mutex);
      at = std::max(at, step);
      moved.NotifyAll();
    }
  });
  for (const auto& session : sessions_) EXPECT_OK(session->status());
}

// Some have received the last decision when the coordinator ends, and some have
// not.
TEST_F(ScheduleIntegrationTest, ADecisionThatOneRankHasReceivedIsSentToAll) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit));
  sessions_[1]->schedule().RequestStop("a signal");
  cables_[0]->Break();
  AwaitState(0, "detached");
  std::thread other([&]() {
    ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, Step(1, 0));
    EXPECT_THAT(decision.stop, HasSubstr("a signal"));
  });
  ASSERT_OK(Announce(0, 0));
  cables_[0]->Mend();
  other.join();
  coordinator_.reset();
  StartCoordinator();
  ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, GateOf(0).Decide({}));
  EXPECT_THAT(decision.stop, HasSubstr("a signal"));
}

TEST_F(ScheduleIntegrationTest, ADrainEndsTheGenerationAfterTheSameStep) {
  JoinAll(2, TermsWith(schedule::Enforcement::kAudit));
  std::vector<int64_t> last(2, -1);
  InThreads(2, [&](int rank) {
    for (int64_t step = 0; last[rank] < 0; ++step) {
      ASSERT_LT(step, 100);
      if (rank == 1 && step == 5) {
        sessions_[rank]->schedule().RequestDrain("SIGTERM");
      }
      ASSERT_OK_AND_ASSIGN(const schedule::Decision decision, Step(rank, step));
      if (decision.regroup.empty()) continue;
      EXPECT_EQ(decision.regroup, "rank 1 (host-a/1) drains: SIGTERM");
      last[rank] = step;
    }
    EXPECT_OK(sessions_[rank]->Leave("regroup"));
  });
  EXPECT_EQ(last, (std::vector<int64_t>{5, 5}));
  EXPECT_EQ(Describe().state(), "ended");
}

}  // namespace
}  // namespace coxswain::schedule_test
