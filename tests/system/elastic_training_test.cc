#include "client/torch/elastic/elastic_training.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "server/coordinator.h"
#include "tests/support/quick_coordinator.h"

// Elastic training of a libtorch module against a real coordinator in the same
// process, each worker a thread.

namespace coxswain::torch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::torch::Tensor;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int64_t kRows = 4;

struct Net : ::torch::nn::Module {
  Net() {
    fc = register_module("fc", ::torch::nn::Linear(16, 24));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(24));
    out = register_module("out", ::torch::nn::Linear(24, 3));
  }
  Tensor forward(const Tensor& x) {
    return out(::torch::relu(norm(fc(x)))).square().mean();
  }
  ::torch::nn::Linear fc{nullptr};
  ::torch::nn::BatchNorm1d norm{nullptr};
  ::torch::nn::Linear out{nullptr};
};

// Returns the rows from `first` on of the endless data. No generator is asked:
// the workers of this process would share it.
Tensor Rows(int64_t first) {
  const Tensor numbers =
      ::torch::arange(kRows * 16, ::torch::kFloat64).view({kRows, 16});
  return ::torch::sin(numbers * 1.7 + static_cast<double>(first) * 0.31)
      .to(::torch::kFloat32);
}

struct Worker {
  int slot = 0;
  int64_t steps = 20;
  std::atomic<bool> drain{false};
  // Asked before each backward pass, with the step that is under way.
  std::function<absl::Status(ElasticTraining&)> before_backward;
  // Likewise, when it has passed and before the optimizer's step.
  std::function<absl::Status(ElasticTraining&)> before_step;
  bool declares = true;  // its micro-batches
  std::string resume;

  std::shared_ptr<Net> net = std::make_shared<Net>();
  ::torch::optim::Adam optimizer{net->parameters(), 0.01};
  absl::Status status = absl::UnknownError("not run");
  std::vector<RecoveryReport> reports;
  // Written by another thread until Run has returned.
  std::vector<SaveReport> saves;
  int64_t began_at = 0;  // step, the last generation's
  int64_t rows = 0;      // the counter, at the end
  int64_t done = 0;      // steps, at the end
  std::thread thread;

  std::string Bits() const {
    std::string bits;
    for (const auto& tensors : {net->parameters(), net->buffers()}) {
      for (const Tensor& tensor : tensors) {
        const Tensor dense = tensor.detach().contiguous();
        bits.append(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
      }
    }
    return bits;
  }
};

class ElasticTrainingTest : public ::testing::Test {
 protected:
  ElasticTrainingTest() {
    auto started = server::Coordinator::Start(QuickCoordinator());
    EXPECT_OK(started);
    if (started.ok()) coordinator_ = std::move(started).value();
  }
  ~ElasticTrainingTest() override { Join(); }

  Worker& Add(int slot) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->slot = slot;
    return *workers_.back();
  }
  void Start(Worker& worker) {
    worker.thread = std::thread([this, &worker] {
      at::set_num_threads(1);
      worker.status = ElasticTraining::Run(
          OptionsOf(worker), worker.net, worker.optimizer,
          [&worker](ElasticTraining& t) { return Body(worker, t); });
    });
  }
  void StartAll() {
    for (const auto& worker : workers_) {
      if (!worker->thread.joinable()) Start(*worker);
    }
  }
  void Join() {
    for (const auto& worker : workers_) {
      if (worker->thread.joinable()) worker->thread.join();
    }
  }

  ElasticTrainingOptions OptionsOf(Worker& worker) const {
    ElasticTrainingOptions options;
    SessionOptions& session = options.run.session;
    session.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
    session.job = job_;
    session.identity = {"host-a", worker.slot};
    session.host = "host-a";
    session.world_size = most_;
    session.min_world_size = 2;
    session.join_timeout = kTimeout;
    session.collective_timeout = kTimeout;
    options.run.on_recovery = [&worker](const RecoveryReport& report) {
      worker.reports.push_back(report);
    };
    options.run.drain_requested = [&worker] { return worker.drain.load(); };
    options.on_checkpoint = [&worker](const SaveReport& report) {
      worker.saves.push_back(report);
    };
    options.resume = worker.resume;
    options.ddp.terms.checkpoint_every = checkpoint_every_;
    options.ddp.terms.checksum_every = checksum_every_;
    options.run.reason_timeout = reason_timeout_;
    options.hook = hook_;
    options.ddp.make_hook = MakePlannedHook;
    options.ddp.reducer.timeout = kTimeout;
    options.ddp.reducer.buckets = {1, 512};
    options.ddp.accumulation_steps = accumulation_;
    return options;
  }

  static absl::Status Body(Worker& worker, ElasticTraining& t) {
    worker.began_at = t.step();
    while (t.step() < worker.steps && t.going()) {
      const Tensor x = Rows(t.counter("rows") + t.rank() * kRows);
      MicroBatch micro;
      if (worker.declares) micro = t.Accumulate();
      const Tensor loss = worker.net->forward(x) * micro.loss_scale;
      if (worker.before_backward) {
        COXSWAIN_RETURN_IF_ERROR(worker.before_backward(t));
      }
      COXSWAIN_RETURN_IF_ERROR(t.Backward(loss));
      t.counter("rows") += t.world_size() * kRows;
      if (worker.before_step) {
        COXSWAIN_RETURN_IF_ERROR(worker.before_step(t));
      }
      if (micro.sync) COXSWAIN_RETURN_IF_ERROR(t.StepOptimizer().status());
    }
    worker.rows = t.counter("rows");
    worker.done = t.step();
    return absl::OkStatus();
  }

  static void ExpectAlike(const std::vector<Worker*>& workers) {
    for (const Worker* worker : workers) {
      EXPECT_OK(worker->status) << "slot " << worker->slot;
      EXPECT_EQ(worker->done, workers[0]->done) << "slot " << worker->slot;
      EXPECT_EQ(worker->rows, workers[0]->rows) << "slot " << worker->slot;
      EXPECT_TRUE(worker->Bits() == workers[0]->Bits())
          << "slot " << worker->slot;
    }
  }
  static std::function<absl::Status(ElasticTraining&)> DiesAt(int64_t step,
                                                              int micro = 0) {
    return [step, micro, seen = 0](ElasticTraining& t) mutable {
      if (t.world_size() != 3 || t.step() != step || seen++ < micro) {
        return absl::OkStatus();
      }
      return absl::InternalError("this worker is to die here");
    };
  }

  std::string job_ = "nets";
  std::string hook_ = "powersgd(rank=2,start_step=2)";
  int accumulation_ = 1;
  int64_t checkpoint_every_ = 0;
  int64_t checksum_every_ = 0;
  int most_ = 3;  // workers
  absl::Duration reason_timeout_ = kTimeout;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

TEST_F(ElasticTrainingTest, SurvivorsTrainOnAndAgreeWithAReferenceRun) {
  std::string reference;
  // Each rank's initial parameters are its own; those of rank 0 count.
  const auto initial = std::make_shared<Net>();
  for (const char* job : {"first", "second"}) {
    job_ = job;
    workers_.clear();
    Worker& a = Add(0);
    Worker& b = Add(1);
    Add(2).before_backward = DiesAt(8);
    ::torch::NoGradGuard no_grad;
    for (size_t i = 0; i < a.net->parameters().size(); ++i) {
      a.net->parameters()[i].copy_(initial->parameters()[i]);
    }
    StartAll();
    Join();
    ExpectAlike({&a, &b});
    EXPECT_EQ(a.done, 20);
    EXPECT_EQ(a.rows, (8 * 3 + 12 * 2) * kRows);
    ASSERT_THAT(a.reports, SizeIs(2));
    EXPECT_EQ(a.reports[1].step, 8);
    EXPECT_EQ(a.reports[1].error_scale, 2.0 / 3);
    if (reference.empty()) reference = a.Bits();
    EXPECT_TRUE(reference == a.Bits());
  }
}

TEST_F(ElasticTrainingTest, AWindowThatWasBegunIsBegunAgain) {
  hook_ = "allreduce";
  accumulation_ = 3;
  Worker& a = Add(0);
  Worker& b = Add(1);
  Add(2).before_backward = DiesAt(5, /*micro=*/1);
  StartAll();
  Join();
  ExpectAlike({&a, &b});
  EXPECT_EQ(a.rows, (5 * 3 + 15 * 2) * 3 * kRows);
}

TEST_F(ElasticTrainingTest, AStepThatWasNotTakenIsNotCounted) {
  hook_ = "allreduce";
  reason_timeout_ = absl::Milliseconds(200);
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  for (Worker* worker : {&a, &b, &c}) worker->declares = false;
  a.before_step = [failed = false](ElasticTraining& t) mutable {
    if (t.step() != 8 || std::exchange(failed, true)) return absl::OkStatus();
    return absl::UnavailableError("something broke");
  };
  StartAll();
  Join();
  ExpectAlike({&a, &b, &c});
  EXPECT_EQ(a.done, 20);
  EXPECT_EQ(a.rows, 20 * 3 * kRows);
  ASSERT_THAT(a.reports, SizeIs(2));
  EXPECT_TRUE(a.reports[1].copied);
}

// Between the decision on a step and the optimizer's, all ranks stop. What the
// hook has sent in it is sent again: the bits are those of a run in which they
// stop before the step.
TEST_F(ElasticTrainingTest, AHookIsNoStepAheadOfTheParameters) {
  reason_timeout_ = absl::Milliseconds(200);
  const auto initial = std::make_shared<Net>();
  std::string before;
  for (const bool decided : {false, true}) {
    job_ = decided ? "decided" : "before";
    workers_.clear();
    for (int slot = 0; slot < 3; ++slot) {
      Worker& worker = Add(slot);
      const auto stops = [stopped = false](ElasticTraining& t) mutable {
        if (t.step() != 8 || std::exchange(stopped, true)) {
          return absl::OkStatus();
        }
        return absl::UnavailableError("something broke");
      };
      if (decided) {
        worker.before_step = stops;
      } else {
        worker.before_backward = stops;
      }
      const ::torch::NoGradGuard no_grad;
      for (size_t i = 0; i < initial->parameters().size(); ++i) {
        worker.net->parameters()[i].copy_(initial->parameters()[i]);
      }
    }
    StartAll();
    Join();
    Worker& a = *workers_[0];
    ExpectAlike({&a, workers_[1].get(), workers_[2].get()});
    ASSERT_THAT(a.reports, SizeIs(2));
    EXPECT_EQ(a.reports[1].step, 8);
    EXPECT_FALSE(a.reports[1].copied);
    EXPECT_EQ(a.rows, 20 * 3 * kRows);
    if (!decided) before = a.Bits();
    EXPECT_TRUE(a.Bits() == before);
  }
}

// What two ranks go back to has the optimizer's averages, the hook's errors,
// the buffers and the counters.
class ElasticTrainingReplayTest : public ElasticTrainingTest {
 protected:
  // Two ranks differ before step 12, which is compared, and go back to step 8.
  void ExpectReplay(bool declares, int micro_batches);
};

void ElasticTrainingReplayTest::ExpectReplay(bool declares, int micro_batches) {
  most_ = 2;
  checksum_every_ = 4;
  accumulation_ = micro_batches;
  const auto initial = std::make_shared<Net>();
  std::string undisturbed;
  for (const bool disturbed : {false, true}) {
    job_ = disturbed ? "disturbed" : "undisturbed";
    workers_.clear();
    for (int slot = 0; slot < 2; ++slot) {
      Worker& worker = Add(slot);
      worker.declares = declares;
      const ::torch::NoGradGuard no_grad;
      for (size_t i = 0; i < initial->parameters().size(); ++i) {
        worker.net->parameters()[i].copy_(initial->parameters()[i]);
      }
    }
    workers_[1]->before_backward =
        [&, done = !disturbed](ElasticTraining& t) mutable {
          if (t.step() != 9 || std::exchange(done, true))
            return absl::OkStatus();
          const Tensor weight = workers_[1]->net->out->weight;
          static_cast<char*>(weight.data_ptr())[2] ^= 1;
          return absl::OkStatus();
        };
    StartAll();
    Join();
    Worker& a = *workers_[0];
    ExpectAlike({&a, workers_[1].get()});
    EXPECT_EQ(a.done, 20);
    EXPECT_EQ(a.rows, 20 * 2 * micro_batches * kRows);
    if (!disturbed) undisturbed = a.Bits();
    EXPECT_TRUE(a.Bits() == undisturbed);
    ASSERT_THAT(a.reports, SizeIs(disturbed ? 2 : 1));
    if (!disturbed) continue;
    EXPECT_EQ(a.reports[1].step, 8);
    EXPECT_THAT(a.reports[1].warnings,
                ElementsAre(HasSubstr("all go back to step 8")));
  }
}

TEST_F(ElasticTrainingReplayTest, TwoRanksThatDifferTakeTheStepsAgain) {
  ExpectReplay(/*declares=*/true, /*micro_batches=*/2);
}

// Their copies are made once a forward pass has changed the buffers.
TEST_F(ElasticTrainingReplayTest, TwoRanksThatDeclareNothingTakeTheStepsAgain) {
  ExpectReplay(/*declares=*/false, /*micro_batches=*/1);
}

TEST_F(ElasticTrainingTest, ReplaysAreRefusedWithSlices) {
  Worker& worker = Add(0);
  ElasticTrainingOptions options = OptionsOf(worker);
  options.ddp.zero = 1;
  options.run.recovery.replay = ReplayMode::kAlways;
  EXPECT_THAT(
      ElasticTraining::Run(options, worker.net, worker.optimizer,
                           [](ElasticTraining&) { return absl::OkStatus(); }),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("no rank has the whole state")));
}

// Parameters and buffers lie differently in the memory of each rank. None of
// them is trained, and the newcomer begins with other values.
TEST_F(ElasticTrainingTest, RanksMayHaveOtherStrides) {
  const Tensor values = ::torch::arange(2 * 3 * 4 * 5, ::torch::kFloat32);
  const auto add = [&](Worker& worker, float first, bool channels_last) {
    Tensor table = values.view({2, 3, 4, 5}) + first;
    Tensor grid = values.view({5, 4, 3, 2}) - first;
    if (channels_last) {
      table = table.contiguous(at::MemoryFormat::ChannelsLast);
      // With gaps.
      Tensor wide = ::torch::zeros({5, 4, 3, 4});
      Tensor narrow = wide.slice(3, 0, 4, 2);
      narrow.copy_(grid);
      grid = narrow;
    }
    worker.net->register_parameter("table", table, /*requires_grad=*/false);
    worker.net->register_buffer("grid", grid);
    worker.steps = 100'000;
  };
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  add(a, 0, false);
  add(b, 0, true);
  add(c, 0, false);
  c.before_backward = DiesAt(8);
  int grown = 0;
  a.before_backward = [&](ElasticTraining& t) {
    if (t.world_size() == 3 && a.reports.size() > 1 && ++grown == 10) {
      t.session().schedule().RequestStop("ten steps with all three");
    }
    return absl::OkStatus();
  };
  StartAll();
  c.thread.join();
  Worker& again = Add(2);
  add(again, 7, true);
  Start(again);
  Join();
  ExpectAlike({&a, &b, &again});
  ASSERT_THAT(again.reports, SizeIs(1));
  EXPECT_TRUE(again.reports[0].copied);
  for (const Worker* worker : {&a, &b, &again}) {
    const auto parameters = worker->net->named_parameters();
    const auto buffers = worker->net->named_buffers();
    EXPECT_TRUE(
        ::torch::equal(*parameters.find("table"), values.view({2, 3, 4, 5})))
        << "slot " << worker->slot;
    EXPECT_TRUE(
        ::torch::equal(*buffers.find("grid"), values.view({5, 4, 3, 2})))
        << "slot " << worker->slot;
  }
}

TEST_F(ElasticTrainingTest, CountersOfOneRankEndNoJob) {
  Worker& a = Add(0);
  Worker& b = Add(1);
  Add(2).before_backward = DiesAt(8);
  a.before_backward = [](ElasticTraining& t) {
    EXPECT_EQ(t.counter("looked at") + t.blob("this, too").size(), 0);
    return absl::OkStatus();
  };
  b.before_backward = [](ElasticTraining& t) {
    t.counter("of rank 1 alone") = 1;
    return absl::OkStatus();
  };
  StartAll();
  Join();
  ExpectAlike({&a, &b});
  ASSERT_THAT(a.reports, SizeIs(2));
  EXPECT_THAT(a.reports[1].warnings, SizeIs(1));
}

TEST_F(ElasticTrainingTest, ANewcomerTakesOverAllThatTheOthersHave) {
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  for (Worker* worker : {&a, &b, &c}) worker->steps = 100'000;
  c.before_backward = DiesAt(8);
  int grown = 0;
  a.before_backward = [&](ElasticTraining& t) {
    // It may come before the others have gone on without it, or later.
    if (t.world_size() == 3 && a.reports.size() > 1 && ++grown == 10) {
      t.session().schedule().RequestStop("ten steps with all three");
    }
    return absl::OkStatus();
  };
  StartAll();
  c.thread.join();
  Worker& again = Add(2);
  again.steps = 100'000;
  Start(again);
  Join();
  ExpectAlike({&a, &b, &again});
  ASSERT_THAT(again.reports, SizeIs(1));
  // It catches up if it has to wait.
  EXPECT_NE(again.reports[0].copied, again.reports[0].caught_up);
  EXPECT_GE(again.reports[0].step, 8);
  EXPECT_EQ(again.reports[0].error_scale, 0);
}

TEST_F(ElasticTrainingTest, AWorkerDrains) {
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  c.before_backward = [&](ElasticTraining& t) {
    if (t.step() == 5) c.drain = true;
    return absl::OkStatus();
  };
  StartAll();
  Join();
  EXPECT_OK(c.status);
  EXPECT_EQ(c.done, 7) << "it asks with the ticket after its step";
  ExpectAlike({&a, &b});
  EXPECT_EQ(a.rows, (7 * 3 + 13 * 2) * kRows);
}

TEST_F(ElasticTrainingTest, AWorkerThatDrainsLeavesACheckpointBehind) {
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  c.before_backward = [&](ElasticTraining& t) {
    if (t.step() == 5) c.drain = true;
    return absl::OkStatus();
  };
  StartAll();
  Join();
  ExpectAlike({&a, &b});
  EXPECT_OK(c.status);
  for (const Worker* worker : {&a, &b, &c}) {
    ASSERT_THAT(worker->saves, SizeIs(1)) << "slot " << worker->slot;
    EXPECT_OK(worker->saves[0].status);
    EXPECT_EQ(worker->saves[0].step, c.done);
    EXPECT_THAT(worker->saves[0].reason, HasSubstr("asks: "));
  }
}

TEST_F(ElasticTrainingTest, AJobGoesOnFromItsNewestCheckpoint) {
  checkpoint_every_ = 8;
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  for (Worker* worker : {&a, &b, &c}) {
    worker->resume = "newest";  // there is none
    worker->steps = 16;
  }
  StartAll();
  Join();
  ExpectAlike({&a, &b, &c});
  EXPECT_EQ(a.began_at, 0);
  ASSERT_THAT(a.saves, SizeIs(2));
  EXPECT_EQ(a.saves[1].step, 16);
  EXPECT_OK(a.saves[1].status);
  checkpoint_every_ = 0;
  Worker& d = Add(0);
  Worker& e = Add(1);
  Worker& f = Add(2);
  for (Worker* worker : {&d, &e, &f}) {
    worker->resume = "newest";
    Start(*worker);
  }
  Join();
  ExpectAlike({&d, &e, &f});
  EXPECT_EQ(d.began_at, 16);
  EXPECT_EQ(d.done, 20);
  EXPECT_EQ(d.rows, 20 * 3 * kRows) << "the counters as well";
}

// A body that does not look at going() gets an error, which is not an error of
// the job.
TEST_F(ElasticTrainingTest, ABodyThatGoesOnIsStopped) {
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  c.drain = false;
  c.before_backward = [&](ElasticTraining& t) {
    if (t.step() == 5) c.drain = true;
    return absl::OkStatus();
  };
  Start(a);
  Start(c);
  b.thread = std::thread([&] {
    at::set_num_threads(1);
    b.status = ElasticTraining::Run(
        OptionsOf(b), b.net, b.optimizer, [&](ElasticTraining& t) {
          while (t.step() < b.steps) {
            const Tensor x = Rows(t.counter("rows") + t.rank() * kRows);
            const MicroBatch micro = t.Accumulate();
            COXSWAIN_RETURN_IF_ERROR(
                t.Backward(b.net->forward(x) * micro.loss_scale));
            t.counter("rows") += t.world_size() * kRows;
            COXSWAIN_RETURN_IF_ERROR(t.StepOptimizer().status());
          }
          b.rows = t.counter("rows");
          b.done = t.step();
          return absl::OkStatus();
        });
  });
  Join();
  ExpectAlike({&a, &b});
}

TEST_F(ElasticTrainingTest, WhatCannotBeElasticIsRefused) {
  Worker& a = Add(0);
  ElasticTrainingOptions options = OptionsOf(a);
  options.ddp.make_averager = MakePlannedAverager;
  const auto body = [](ElasticTraining&) { return absl::OkStatus(); };
  EXPECT_THAT(ElasticTraining::Run(options, a.net, a.optimizer, body),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("averagers do not go with")));
  options = OptionsOf(a);
  options.ddp.make_hook = nullptr;
  EXPECT_THAT(ElasticTraining::Run(options, a.net, a.optimizer, body),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("MakePlannedHook")));
  LoopbackCommunicator shard;
  options = OptionsOf(a);
  options.ddp.reducer.hybrid.shard = &shard;
  EXPECT_THAT(ElasticTraining::Run(options, a.net, a.optimizer, body),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("reducer.hybrid is set")));
  a.status = absl::OkStatus();
}

TEST_F(ElasticTrainingTest, AHookThatNeedsAnAveragerIsRefusedByAll) {
  hook_ = "post_local_sgd(start_step=2,period=2)";
  Worker& a = Add(0);
  Worker& b = Add(1);
  Worker& c = Add(2);
  StartAll();
  Join();
  for (const Worker* worker : {&a, &b, &c}) {
    EXPECT_THAT(worker->status, StatusIs(absl::StatusCode::kUnimplemented,
                                         HasSubstr("works with an averager")));
  }
}

}  // namespace
}  // namespace coxswain::torch
