#ifndef COXSWAIN_TESTS_SYSTEM_NEWCOMER_FIXTURE_H_
#define COXSWAIN_TESTS_SYSTEM_NEWCOMER_FIXTURE_H_

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/torch/elastic/elastic_training.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/planned_hook.h"
#include "server/coordinator.h"
#include "tests/support/quick_coordinator.h"

// Elastic libtorch workers of which one comes while the others train. Against a
// real coordinator in the same process, each worker a thread.

namespace coxswain::torch::catches_up_test {

using ::torch::Tensor;

inline constexpr absl::Duration kTimeout = absl::Seconds(30);
inline constexpr int64_t kRows = 4;
inline constexpr int64_t kEndless = 1'000'000;

// More than a piece of the state.
struct Net : ::torch::nn::Module {
  Net() {
    fc = register_module("fc", ::torch::nn::Linear(16, 512));
    norm = register_module("norm", ::torch::nn::BatchNorm1d(512));
    mid = register_module("mid", ::torch::nn::Linear(512, 768));
    out = register_module("out", ::torch::nn::Linear(768, 3));
    register_parameter("frozen", ::torch::randn({7}), false);
  }
  Tensor forward(const Tensor& x) {
    return out(::torch::relu(mid(::torch::relu(norm(fc(x)))))).square().mean();
  }
  ::torch::nn::Linear fc{nullptr};
  ::torch::nn::BatchNorm1d norm{nullptr};
  ::torch::nn::Linear mid{nullptr};
  ::torch::nn::Linear out{nullptr};
};

inline Tensor Rows(int64_t first) {
  const Tensor numbers =
      ::torch::arange(kRows * 16, ::torch::kFloat64).view({kRows, 16});
  return ::torch::sin(numbers * 1.7 + static_cast<double>(first) * 0.31)
      .to(::torch::kFloat32);
}

inline std::string BitsOf(const Net& net) {
  std::string bits;
  for (const auto& tensors : {net.parameters(), net.buffers()}) {
    for (const Tensor& tensor : tensors) {
      const Tensor dense = tensor.detach().contiguous();
      bits.append(static_cast<const char*>(dense.data_ptr()), dense.nbytes());
    }
  }
  return bits;
}

using MakeOptimizer =
    std::function<std::unique_ptr<::torch::optim::Optimizer>(Net&)>;

inline std::unique_ptr<::torch::optim::Optimizer> MakeAdam(Net& net) {
  return std::make_unique<::torch::optim::Adam>(
      net.parameters(), ::torch::optim::AdamOptions(0.01).weight_decay(0.1));
}
inline std::unique_ptr<::torch::optim::Optimizer> MakeSgd(Net& net) {
  return std::make_unique<::torch::optim::SGD>(
      net.parameters(), ::torch::optim::SGDOptions(0.01).momentum(0.9));
}

struct Worker {
  Worker(int slot_in, const MakeOptimizer& make)
      : slot(slot_in), optimizer(make(*net)) {}

  const int slot;
  int64_t steps = kEndless;
  std::function<void(ElasticTraining&)> before_step;
  std::function<void(SessionOptions*)> change;  // its session's options
  bool catch_up = true;

  std::shared_ptr<Net> net = std::make_shared<Net>();
  std::unique_ptr<::torch::optim::Optimizer> optimizer;
  absl::Status status = absl::UnknownError("not run");
  std::vector<RecoveryReport> reports;
  std::vector<std::string> recovered;  // bits, with each report
  int64_t skipped = 0;
  int64_t done = 0;
  std::thread thread;
};

class ANewcomerCatchesUpTest : public ::testing::Test {
 protected:
  void StartCoordinator(absl::Duration catch_up_timeout = kTimeout) {
    server::CoordinatorOptions options = QuickCoordinator();
    options.membership.catch_up_timeout = catch_up_timeout;
    ASSERT_OK_AND_ASSIGN(coordinator_, server::Coordinator::Start(options));
    port_ = coordinator_->port();
  }
  ~ANewcomerCatchesUpTest() override { Join(); }

  Worker& Add(int slot) {
    workers_.push_back(std::make_unique<Worker>(slot, make_optimizer_));
    return *workers_.back();
  }
  void Start(Worker& worker) {
    worker.thread = std::thread([this, &worker] {
      at::set_num_threads(1);
      worker.status = ElasticTraining::Run(
          OptionsOf(worker), worker.net, *worker.optimizer,
          [&](ElasticTraining& t) { return Body(worker, t); });
    });
  }
  void Join() {
    for (const auto& worker : workers_) {
      if (worker->thread.joinable()) worker->thread.join();
    }
  }

  ElasticTrainingOptions OptionsOf(Worker& worker) const {
    ElasticTrainingOptions options;
    SessionOptions& session = options.run.session;
    session.coordinator = absl::StrCat("127.0.0.1:", port_);
    session.job = job_;
    session.identity = {"host-a", worker.slot};
    session.host = "host-a";
    session.world_size = world_size_;
    session.min_world_size = 2;
    session.join_timeout = kTimeout;
    session.collective_timeout = kTimeout;
    if (worker.change) worker.change(&session);
    options.run.on_recovery = [&worker](const RecoveryReport& report) {
      worker.reports.push_back(report);
      worker.recovered.push_back(BitsOf(*worker.net));
    };
    options.run.reason_timeout = absl::Milliseconds(200);
    // One that has what it was sent takes it, however busy the machine is.
    options.run.last_step_timeout = kTimeout;
    options.hook = "allreduce";
    options.ddp.make_hook = MakePlannedHook;
    options.ddp.reducer.timeout = kTimeout;
    options.ddp.reducer.max_norm = 0.05;
    options.ddp.skip_non_finite = true;
    options.catch_up = worker.catch_up;
    return options;
  }

  // Rates that change with each step, and a step in seven that is skipped.
  static absl::Status Body(Worker& worker, ElasticTraining& t) {
    while (t.step() < worker.steps && t.going()) {
      const int64_t step = t.step();
      for (auto& group : worker.optimizer->param_groups()) {
        group.options().set_lr(0.01 / static_cast<double>(1 + step % 5));
      }
      const MicroBatch micro = t.Accumulate();
      Tensor loss =
          worker.net->forward(Rows(t.counter("rows") + t.rank() * kRows));
      if (step % 7 == 3) loss = loss * std::numeric_limits<float>::quiet_NaN();
      COXSWAIN_RETURN_IF_ERROR(t.Backward(loss, micro));
      t.counter("rows") += t.world_size() * kRows;
      if (worker.before_step) worker.before_step(t);
      COXSWAIN_RETURN_IF_ERROR(t.StepOptimizer().status());
      if (t.ddp().skipped()) ++worker.skipped;
    }
    worker.done = t.step();
    return absl::OkStatus();
  }

  // Two members that train until all three have taken ten steps; the third is
  // started once the first two have taken some.
  void TrainWithNewcomer(Worker& a, Worker& b, Worker& newcomer) {
    a.before_step = [this, &a, &newcomer,
                     together = 0](ElasticTraining& t) mutable {
      if (t.step() == 20 && a.reports.size() == 1) Start(newcomer);
      if (t.world_size() == 3 && ++together == 10) {
        t.session().schedule().RequestStop("ten steps with all three");
      }
    };
    Start(a);
    Start(b);
    a.thread.join();
    Join();
    for (const Worker* worker : {&a, &b, &newcomer}) {
      EXPECT_OK(worker->status) << "slot " << worker->slot;
      EXPECT_EQ(worker->done, a.done) << "slot " << worker->slot;
      EXPECT_TRUE(BitsOf(*worker->net) == BitsOf(*a.net))
          << "slot " << worker->slot;
    }
    ASSERT_THAT(a.reports, ::testing::SizeIs(2));
    ASSERT_THAT(newcomer.reports, ::testing::SizeIs(1));
  }
  // With the same initial values, training of two to this step, and its bits.
  std::string Reference(const Net& initial, int64_t steps) {
    job_ = "reference";
    world_size_ = 2;
    Worker& a = Add(0);
    Worker& b = Add(1);
    for (Worker* worker : {&a, &b}) {
      worker->steps = steps;
      Copy(initial, worker->net.get());
      Start(*worker);
    }
    Join();
    EXPECT_OK(a.status);
    return BitsOf(*a.net);
  }
  static void Copy(const Net& from, Net* to) {
    const ::torch::NoGradGuard no_grad;
    for (size_t i = 0; i < from.parameters().size(); ++i) {
      to->parameters()[i].copy_(from.parameters()[i]);
    }
  }

  void ExpectItIsTakenInAsAMember() {
    StartCoordinator();
    const Net initial;
    Worker& a = Add(0);
    Worker& b = Add(1);
    Worker& newcomer = Add(2);
    Copy(initial, a.net.get());
    Copy(initial, b.net.get());
    TrainWithNewcomer(a, b, newcomer);
    if (HasFatalFailure()) return;
    EXPECT_TRUE(newcomer.reports[0].caught_up);
    EXPECT_THAT(newcomer.reports[0].warnings, ::testing::IsEmpty());
    EXPECT_GT(newcomer.reports[0].step, 20);
    EXPECT_GT(a.skipped, 2) << "no step is skipped";
    for (const Worker* worker : {&a, &b, &newcomer}) {
      const RecoveryReport& report = worker->reports.back();
      EXPECT_FALSE(report.copied) << "slot " << worker->slot;
      EXPECT_EQ(report.source, -1);
      EXPECT_TRUE(worker->recovered.back() == a.recovered.back())
          << "slot " << worker->slot;
    }
    EXPECT_FALSE(a.reports[1].caught_up);
    EXPECT_TRUE(Reference(initial, a.reports[1].step) == a.recovered.back());
  }

  MakeOptimizer make_optimizer_ = MakeAdam;
  std::string job_ = "nets";
  int port_ = 0;
  int world_size_ = 3;
  std::unique_ptr<server::Coordinator> coordinator_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace coxswain::torch::catches_up_test

#endif  // COXSWAIN_TESTS_SYSTEM_NEWCOMER_FIXTURE_H_
