#include "tests/integration/pointer_training.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "tests/support/in_threads.h"
#include "tests/support/quick_coordinator.h"

namespace coxswain::pointer_training {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

}  // namespace

double Model::Backward(int64_t batch) {
  double loss = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const double target = std::sin(12.9898 * static_cast<double>(batch) +
                                   78.233 * static_cast<double>(i));
    gradient[i] = value[i] - target;
    loss += gradient[i] * gradient[i] / 2;
  }
  return loss;
}

absl::Status Model::Step() {
  for (size_t i = 0; i < value.size(); ++i) {
    momentum[i] = 0.5 * momentum[i] + gradient[i];
    value[i] -= 0.1 * momentum[i];
  }
  return absl::OkStatus();
}

void Model::PlainStep(const std::vector<int64_t>& batches) {
  std::vector<double> sum(value.size());
  for (const int64_t batch : batches) {
    Backward(batch);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    gradient[i] = sum[i] / static_cast<double>(batches.size());
  }
  EXPECT_OK(Step());
}

void Model::PlainSteps(int64_t* next, int64_t steps, int64_t batches) {
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < batches; ++i) numbers.push_back((*next)++);
    PlainStep(numbers);
  }
}

std::vector<TrainedParameter> Model::parameters() {
  return {{"weight", {3, 4}, value.data(), gradient.data(), DType::kFloat64}};
}

TrainedOptimizer Model::optimizer() {
  TrainedOptimizer optimizer;
  optimizer.step = [this] { return Step(); };
  optimizer.save = [this]() -> absl::StatusOr<std::string> {
    return std::string(reinterpret_cast<const char*>(momentum.data()),
                       momentum.size() * sizeof(double));
  };
  optimizer.load = [this](absl::string_view bytes) -> absl::Status {
    if (bytes.size() != momentum.size() * sizeof(double)) {
      return absl::DataLossError("not the momenta");
    }
    std::memcpy(momentum.data(), bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  return optimizer;
}

Model Plain(int64_t steps, int64_t batches) {
  Model model;
  int64_t next = 0;
  model.PlainSteps(&next, steps, batches);
  return model;
}

void ExpectClose(const Model& a, const Model& b) {
  for (size_t i = 0; i < a.value.size(); ++i) {
    EXPECT_NEAR(a.value[i], b.value[i], 1e-12) << i;
  }
}

PointerTrainTest::PointerTrainTest() {
  auto started = server::Coordinator::Start(QuickCoordinator());
  EXPECT_OK(started);
  if (started.ok()) coordinator_ = std::move(started).value();
}

SessionOptions PointerTrainTest::SessionOf(int slot, int ranks) const {
  SessionOptions session;
  session.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
  session.job = "job";
  session.identity = {"host-a", slot};
  session.host = "host-a";
  session.world_size = ranks;
  session.min_world_size = min_world_size_;
  session.join_timeout = session.collective_timeout = kTimeout;
  session.plan_overrides = plan_overrides_;
  return session;
}

std::vector<Ended> PointerTrainTest::Run(int ranks, const TrainOptions& options,
                                         const Body& body) const {
  std::vector<Ended> ended(static_cast<size_t>(ranks));
  InThreads(ranks, [&](int slot) {
    RunOne(slot, ranks, options, body, &ended[static_cast<size_t>(slot)]);
  });
  return ended;
}

void PointerTrainTest::RunOne(int slot, int ranks, const TrainOptions& options,
                              const Body& body, Ended* ended) const {
  TrainOptions own = options;
  own.session = SessionOf(slot, ranks);
  ended->status = Train(own, ended->model.parameters(),
                        ended->model.optimizer(), [&](Training& training) {
                          const absl::Status status =
                              body(training, ended->model);
                          ended->step = training.step();
                          ended->counter = training.counter("batches");
                          return status;
                        });
}

TrainOptions PointerTrainTest::Options() {
  TrainOptions options;
  options.stop_on_sigterm = false;
  return options;
}

PointerTrainTest::Body PointerTrainTest::Until(int64_t steps) {
  return [steps](Training& training, Model& model) -> absl::Status {
    while (training.going() && training.step() < steps) {
      int64_t& batches = training.counter("batches");
      COXSWAIN_RETURN_IF_ERROR(training.Step(
          [&] { return model.Backward(batches + training.rank()); }));
      EXPECT_EQ(training.taken(), training.stepped());
      EXPECT_GT(training.loss(), 0);
      batches += training.world_size();
    }
    return absl::OkStatus();
  };
}

}  // namespace coxswain::pointer_training
