// Measures what a newcomer costs the members of an elastic libtorch job, with
// all workers as threads of this process and a coordinator beside them:
//
//   catch_up --megabytes 100 --members 2 --catch-up 1
//
// prints, of rank 0: the median step before the newcomer is started; the
// longest step from then to the regroup, and by how much all of these steps
// together exceed the median; how long the regroup took, from the end of the
// last step to the beginning of the next one; whether the newcomer copied or
// had caught up.

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/torch/elastic/elastic_training.h"
#include "hooks/registry/planned_hook.h"
#include "server/coordinator.h"

namespace {

using coxswain::torch::ElasticTraining;

constexpr int64_t kStepsBefore = 40;
constexpr int64_t kStepsAfter = 20;

struct Flags {
  double megabytes = 100;  // parameters and what Adam keeps of them
  int members = 2;
  bool catch_up = true;
  int64_t steps_until_newcomer = kStepsBefore;
};

// A square layer, of which Adam keeps two averages.
std::shared_ptr<torch::nn::LinearImpl> MakeModel(const Flags& flags) {
  const double elements = flags.megabytes * 1e6 / (3 * sizeof(float));
  const auto side = static_cast<int64_t>(std::sqrt(elements));
  return std::make_shared<torch::nn::LinearImpl>(
      torch::nn::LinearOptions(side, side).bias(false));
}

double Milliseconds(absl::Duration time) {
  return absl::ToDoubleMilliseconds(time);
}

class Job {
 public:
  explicit Job(const Flags& flags) : flags_(flags) {}

  absl::Status Run() {
    coxswain::server::CoordinatorOptions options;
    options.state_dir = absl::StrCat("/tmp/catch-up-bench-", getpid());
    options.membership.last_call = absl::Milliseconds(200);
    options.membership.growth_settle = absl::Milliseconds(50);
    options.membership.growth_min_age = absl::Milliseconds(100);
    COXSWAIN_ASSIGN_OR_RETURN(coordinator_,
                              coxswain::server::Coordinator::Start(options));
    statuses_.resize(static_cast<size_t>(flags_.members) + 1);
    threads_.resize(statuses_.size());
    for (int slot = 0; slot < flags_.members; ++slot) Start(slot);
    threads_[0].join();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    absl::Status status;
    for (const absl::Status& one : statuses_) status.Update(one);
    if (status.ok()) Print();
    return status;
  }

 private:
  void Start(int slot) {
    threads_[static_cast<size_t>(slot)] = std::thread([this, slot] {
      at::set_num_threads(1);
      statuses_[static_cast<size_t>(slot)] = Train(slot);
    });
  }

  absl::Status Train(int slot) {
    const auto model = MakeModel(flags_);
    torch::optim::Adam optimizer(model->parameters(), 1e-4);
    coxswain::torch::ElasticTrainingOptions options;
    coxswain::SessionOptions& session = options.run.session;
    session.coordinator = absl::StrCat("127.0.0.1:", coordinator_->port());
    session.job = "catch-up";
    session.identity = {"host-a", slot};
    session.world_size = flags_.members + 1;
    session.min_world_size = flags_.members;
    options.hook = "allreduce";
    options.ddp.make_hook = coxswain::MakePlannedHook;
    options.catch_up = flags_.catch_up;
    if (slot == flags_.members) {
      options.run.on_recovery = [this](const coxswain::RecoveryReport& report) {
        report_ = report;
      };
    }
    const int64_t side = model->options.in_features();
    return ElasticTraining::Run(
        options, model, optimizer, [&](ElasticTraining& t) -> absl::Status {
          const bool all = t.world_size() > flags_.members;
          if (slot == 0 && all) grown_ = Now();
          int64_t steps = 0;
          while (t.going()) {
            const absl::Time began = Now();
            const auto micro = t.Accumulate();
            const auto loss =
                model->forward(torch::ones({1, side})).square().mean();
            COXSWAIN_RETURN_IF_ERROR(t.Backward(loss, micro));
            ++steps;
            if (slot == 0 && all && steps == kStepsAfter) {
              t.session().schedule().RequestStop("measured");
            }
            COXSWAIN_RETURN_IF_ERROR(t.StepOptimizer().status());
            if (slot != 0 || all) continue;
            ended_ = Now();
            (started_ ? with_ : before_).push_back(Milliseconds(Now() - began));
            if (steps == flags_.steps_until_newcomer) {
              started_ = true;
              Start(flags_.members);
            }
          }
          return absl::OkStatus();
        });
  }

  void Print() {
    // The first steps make what later ones have.
    std::vector<double> usual(before_.begin() + 5, before_.end());
    std::sort(usual.begin(), usual.end());
    const double median = usual[usual.size() / 2];
    double longest = 0;
    double excess = 0;
    for (const double step : with_) {
      longest = std::max(longest, step);
      excess += step - median;
    }
    std::cout << "catch_up=" << flags_.catch_up << " members=" << flags_.members
              << " megabytes=" << flags_.megabytes << " median_ms=" << median
              << " p95_ms=" << usual[usual.size() * 95 / 100]
              << " steps_with_newcomer=" << with_.size()
              << " longest_ms=" << longest << " excess_ms=" << excess
              << " regroup_ms=" << Milliseconds(grown_ - ended_)
              << " caught_up=" << report_.caught_up
              << " copied=" << report_.copied << std::endl;
  }

  static absl::Time Now() { return coxswain::Clock::Real()->Now(); }

  const Flags flags_;
  std::unique_ptr<coxswain::server::Coordinator> coordinator_;
  std::vector<absl::Status> statuses_;
  std::vector<std::thread> threads_;
  // Of rank 0: milliseconds of each step.
  std::vector<double> before_;
  std::vector<double> with_;
  bool started_ = false;
  absl::Time ended_;
  absl::Time grown_;
  coxswain::RecoveryReport report_;  // the newcomer's
};

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("What a newcomer costs the members of an elastic job");
  app.add_option("--megabytes", flags.megabytes, "of the state, in all")
      ->check(CLI::Range(1.0, 10'000.0));
  app.add_option("--members", flags.members, "that train before it comes")
      ->check(CLI::Range(2, 64));
  app.add_option("--catch-up", flags.catch_up,
                 "1: it takes the state while they train; 0: at the regroup");
  app.add_option("--steps", flags.steps_until_newcomer, "before it comes")
      ->check(CLI::Range(20, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Job(flags).Run();
  if (status.ok()) return 0;
  std::cerr << status << std::endl;
  return 1;
}
