// Elastic training whose parameters show which samples were used: with a second
// stream, with windows that the end of an epoch cuts, and where the plan
// changes in the step of a death. A real coordinator in the same process, each
// worker a thread.

#include "tests/system/toy/tally.h"

#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "cli/commands.h"
#include "client/rpc/stub_factory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "schedule/plan.h"
#include "server/coordinator.h"

namespace coxswain::torch::tally_test {
namespace {

using ::testing::SizeIs;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int64_t kRows = 1024;
constexpr int kAccumulation = 2;

using Point = std::function<absl::Status(ElasticTraining&)>;

struct Worker {
  int slot = 0;
  TallyTraining training;
  // What a plan names; MakePlannedHook by default.
  std::function<absl::StatusOr<std::unique_ptr<Hook>>(const schedule::Plan&)>
      make_hook = MakePlannedHook;

  std::shared_ptr<Tally> tally = std::make_shared<Tally>(kRows);
  ::torch::optim::SGD optimizer{tally->parameters(), 1.0};
  absl::Status status = absl::UnknownError("not run");
  std::vector<RecoveryReport> reports;
  TallyResult result;
  std::thread thread;
};

class TallyTest : public ::testing::Test {
 protected:
  TallyTest() {
    server::CoordinatorOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    options.tick_interval = absl::Milliseconds(10);
    options.membership.last_call = absl::Milliseconds(200);
    auto started = server::Coordinator::Start(options);
    EXPECT_OK(started);
    if (started.ok()) coordinator_ = std::move(started).value();
    for (int slot = 0; slot < 3; ++slot) {
      workers_.push_back(std::make_unique<Worker>());
      workers_.back()->slot = slot;
    }
  }

  std::string address() const {
    return absl::StrCat("127.0.0.1:", coordinator_->port());
  }
  Worker& worker(size_t slot) { return *workers_[slot]; }

  void RunAll() {
    for (const auto& worker : workers_) {
      worker->thread = std::thread([this, worker = worker.get()] {
        at::set_num_threads(1);
        worker->status = ElasticTraining::Run(
            OptionsOf(*worker), worker->tally, worker->optimizer,
            [worker](ElasticTraining& t) {
              return TrainTally(worker->training, *worker->tally, t,
                                &worker->result);
            });
      });
    }
    for (const auto& worker : workers_) worker->thread.join();
  }

  ElasticTrainingOptions OptionsOf(Worker& worker) const {
    ElasticTrainingOptions options;
    SessionOptions& session = options.run.session;
    session.coordinator = address();
    session.job = "tally";
    session.identity = {"host-a", worker.slot};
    session.host = "host-a";
    session.world_size = 3;
    session.min_world_size = 2;
    session.join_timeout = kTimeout;
    session.collective_timeout = kTimeout;
    options.run.on_recovery = [&worker](const RecoveryReport& report) {
      worker.reports.push_back(report);
    };
    options.run.reason_timeout = kTimeout;
    options.ddp.make_hook = worker.make_hook;
    options.ddp.reducer.timeout = kTimeout;
    options.ddp.accumulation_steps = kAccumulation;
    options.ddp.terms.tail = tail_;
    return options;
  }

  // Fails in a generation of three, in that step, before the pass of a window's
  // micro-batch number `micro`.
  static Point DiesAt(int64_t step, int micro) {
    return [step, micro, seen = 0](ElasticTraining& t) mutable {
      if (t.world_size() != 3 || t.step() != step || seen++ < micro) {
        return absl::OkStatus();
      }
      return absl::InternalError("this worker is to die here");
    };
  }

  // The two that are left have done all steps, with each row used once.
  void ExpectExact(int64_t step) {
    for (const size_t slot : {size_t{0}, size_t{1}}) {
      const Worker& one = worker(slot);
      EXPECT_OK(one.status) << "slot " << slot;
      EXPECT_EQ(one.result.step, step) << "slot " << slot;
      EXPECT_EQ(one.result.rows, worker(0).result.rows) << "slot " << slot;
      EXPECT_EQ(one.result.peeks, worker(0).result.peeks) << "slot " << slot;
      EXPECT_OK(one.tally->CheckUsedOnce(one.result.rows, one.result.dropped))
          << "slot " << slot;
      EXPECT_THAT(one.reports, SizeIs(2)) << "slot " << slot;
    }
  }

  schedule::TailPolicy tail_ = schedule::TailPolicy::kFlush;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(TallyTest, StepsAreCountedWhileAnotherStreamIsInAWindow) {
  for (const auto& worker : workers_) worker->training.peek_every = 3;
  std::vector<int64_t> steps;
  worker(0).training.before_step = [&steps](ElasticTraining& t) {
    steps.push_back(t.step());
    return absl::OkStatus();
  };
  RunAll();
  ASSERT_THAT(steps, SizeIs(20));
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(steps[static_cast<size_t>(step)], step);
  }
  for (const auto& worker : workers_) {
    EXPECT_OK(worker->status);
    EXPECT_EQ(worker->result.rows, 20 * 3 * kAccumulation);
    EXPECT_EQ(worker->result.peeks, 3);  // of 7 micro-batches
    EXPECT_OK(worker->tally->CheckUsedOnce(worker->result.rows, {}));
  }
}

TEST_F(TallyTest, ADeathWithinAnotherStreamsWindowRepeatsNoSamples) {
  for (const auto& worker : workers_) worker->training.peek_every = 3;
  // In step 6 the third micro-batch of the stream has begun its second window.
  worker(2).training.before_backward = DiesAt(7, /*micro=*/1);
  RunAll();
  ExpectExact(20);
  EXPECT_EQ(worker(0).reports[1].step, 7);
  EXPECT_EQ(worker(0).result.rows, (7 * 3 + 13 * 2) * kAccumulation);
}

// Windows go on from one epoch into the next; the one under way is begun again.
TEST_F(TallyTest, ADeathInAWindowThatIsCarriedOverLosesNoSample) {
  tail_ = schedule::TailPolicy::kCarry;
  for (const auto& worker : workers_) {
    worker->training.epoch = 3;
    worker->training.peek_every = 3;
  }
  // Step 7 is of the micro-batches 14 and 15, and 15 begins an epoch.
  worker(2).training.before_backward = DiesAt(7, /*micro=*/1);
  RunAll();
  ExpectExact(20);
  EXPECT_EQ(worker(0).result.rows, (7 * 3 + 13 * 2) * kAccumulation);
  EXPECT_TRUE(worker(0).result.dropped.empty());
}

// The third micro-batch of each epoch is dropped. Nothing is exchanged in it,
// so the others notice in the next window that a worker has died in this one.
TEST_F(TallyTest, ADeathInAWindowThatIsDroppedUsesNoneOfItsSamples) {
  tail_ = schedule::TailPolicy::kDrop;
  for (const auto& worker : workers_) {
    worker->training.epoch = 3;
    worker->training.peek_every = 3;
  }
  // The first micro-batch after seven steps is to be dropped.
  worker(2).training.before_backward = DiesAt(7, /*micro=*/0);
  RunAll();
  ExpectExact(20);
  EXPECT_EQ(worker(0).reports[1].step, 7);
  // Seven epochs of three ranks, twelve of two, and the last one's window.
  EXPECT_EQ(worker(0).result.rows, 7 * 9 + 12 * 6 + 4);
  EXPECT_THAT(worker(0).result.dropped, SizeIs(7 * 3 + 12 * 2));
}

// All have received the decision to take the step, and to go on with another
// hook after it. The peers of the one that cannot make that hook have taken the
// step.
TEST_F(TallyTest, AStepIsTakenWhoseChangeOfPlanADeathCutsShort) {
  int64_t under_way = -1;
  worker(0).training.before_backward =
      [&, set = false](ElasticTraining& t) mutable {
        under_way = t.world_size() == 3 ? t.step() : under_way;
        if (t.step() != 5 || std::exchange(set, true)) return absl::OkStatus();
        PlanSetOptions change;
        change.job = "tally";
        change.changes = {"hook=bf16", "hook_state=reset"};
        return SetPlan(change, *ConnectCoordinator(address()),
                       RandomSource::System())
            .status();
      };
  for (const auto& worker : workers_) worker->training.steps = 40;
  worker(2).make_hook =
      [](const schedule::Plan& plan) -> absl::StatusOr<std::unique_ptr<Hook>> {
    if (plan.hook != "allreduce") {
      return absl::InternalError("this worker is to die here");
    }
    return MakePlannedHook(plan);
  };
  RunAll();
  ExpectExact(40);
  ASSERT_THAT(worker(0).reports, SizeIs(2));
  EXPECT_EQ(worker(0).reports[1].step, under_way + 1);
  EXPECT_FALSE(worker(0).reports[1].copied);
  EXPECT_EQ(worker(0).result.rows,
            ((under_way + 1) * 3 + (39 - under_way) * 2) * kAccumulation);
}

}  // namespace
}  // namespace coxswain::torch::tally_test
