#include "tests/integration/elastic_team.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/support/quick_coordinator.h"

namespace coxswain {

void ElasticWorker::DieAt(int world_size, int64_t step, Point point) {
  training.at = [=](Point now, const ElasticGeneration& generation) {
    if (generation.communicator->size() == world_size && now == point &&
        state->step() == step) {
      return absl::InternalError("this worker is to die here");
    }
    return absl::OkStatus();
  };
}

ElasticTeam::ElasticTeam(int most, int fewest, std::string hook,
                         int64_t checksum_every)
    : most_(most),
      fewest_(fewest),
      hook_(std::move(hook)),
      checksum_every_(checksum_every) {
  auto started = server::Coordinator::Start(QuickCoordinator());
  EXPECT_OK(started);
  if (started.ok()) coordinator_ = std::move(started).value();
}

ElasticTeam::~ElasticTeam() { Join(); }

ElasticWorker& ElasticTeam::Add(int slot, int64_t steps) {
  workers_.push_back(std::make_unique<ElasticWorker>());
  ElasticWorker& worker = *workers_.back();
  worker.slot = slot;
  worker.training.steps = steps;
  worker.training.timeout = kTimeout;
  worker.state = std::make_unique<ElasticToyState>(DType::kFloat64, 16, 2);
  return worker;
}

void ElasticTeam::Start(ElasticWorker& worker) {
  worker.thread = std::thread([this, &worker] { Run(worker); });
}

void ElasticTeam::StartAll() {
  for (const auto& worker : workers_) {
    if (!worker->thread.joinable()) Start(*worker);
  }
}

void ElasticTeam::Join() {
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

ElasticRun::Options ElasticTeam::OptionsOf(ElasticWorker& worker) const {
  ElasticRun::Options options;
  options.session.coordinator =
      absl::StrCat("127.0.0.1:", coordinator_->port());
  options.session.job = "toys";
  options.session.identity = {"host-a", worker.slot};
  options.session.host = "host-a";
  options.session.world_size = most_;
  options.session.min_world_size = fewest_;
  options.session.join_timeout = worker.join_timeout;
  options.session.collective_timeout = kTimeout;
  options.manifest.hook = hook_;
  options.manifest.terms.checksum_every = checksum_every_;
  options.manifest.parameters = worker.state->specs();
  options.recovery.timeout = kTimeout;
  options.recovery.replay = worker.replay;
  options.reason_timeout = worker.reason_timeout;
  options.max_fruitless = worker.max_fruitless;
  options.catch_up = worker.catch_up;
  options.last_step_timeout = kTimeout;
  options.on_recovery = [&worker](const RecoveryReport& report) {
    worker.reports.push_back(report);
  };
  options.drain_requested = [&worker] { return worker.drain.load(); };
  return options;
}

void ElasticTeam::Run(ElasticWorker& worker) const {
  worker.status = ElasticRun::Run(
      OptionsOf(worker), worker.state.get(),
      [&worker](ElasticGeneration& generation, ElasticRun::Trained* trained) {
        absl::Status status = TrainElasticToy(
            worker.training, worker.state.get(), generation, trained);
        worker.hook_state = trained->hook_state;
        return status;
      },
      &worker.ending);
}

void Door::Open() {
  MutexLock lock(&mutex_);
  open_ = true;
  opened_.NotifyAll();
}

absl::Status Door::Pass() {
  MutexLock lock(&mutex_);
  const bool open = opened_.WaitFor(
      &mutex_, kTimeout,
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_; });
  if (open) return absl::OkStatus();
  return absl::DeadlineExceededError("the door was not opened");
}

}  // namespace coxswain
