// Measures what a newcomer costs the members of an elastic libtorch job, with
// all workers as threads of this process and a coordinator beside them:
//
//   catch_up --megabytes 100 --members 2 --catch-up 1
//
// prints, of rank 0: the median step before the newcomer is started; the
// longest step from then to the regroup, and by how much all of these steps
// together exceed the median; how long the regroup took, from the end of the
// last step to the beginning of the next one; whether the newcomer copied or
// had caught up. And what the regroup consists of:
//
//   leave_ms     the end of the generation before
//   join_ms      until the next one's members were known
//   connect_ms   until they were connected
//   recover_ms   what recovery compares, which is checksums for the most part,
//                and copies; with the wait for the last of them, and for the
//                newcomer to take the last steps
//   wrapper_ms   the wrapper of the next generation
//   checksum_ms  part of recover_ms: the checksums, taken once more after all
//                of this, without anything beside them
//
// With --step-ms, forward and backward are a wait of so long, as where a GPU
// computes, and the processors are free in it: the gradient is one.

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
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/elastic/state_copy.h"
#include "client/torch/elastic/elastic_training.h"
#include "client/torch/elastic_module_state.h"
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
  int64_t step_ms = 0;
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
    if (status.ok()) status = TakeChecksums();
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
    const auto made =
        std::make_shared<torch::optim::Adam>(model->parameters(), 1e-4);
    torch::optim::Adam& optimizer = *made;
    if (slot == 0) {
      model_ = model;
      optimizer_ = made;
    }
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
    options.run.on_recovery = [this,
                               slot](const coxswain::RecoveryReport& report) {
      if (slot == flags_.members) report_ = report;
      if (slot != 0) return;
      regroup_ = report;
      recovered_ = Now();
    };
    return ElasticTraining::Run(
        options, model, optimizer, [&](ElasticTraining& t) -> absl::Status {
          const bool all = t.world_size() > flags_.members;
          if (slot == 0 && all) grown_ = Now();
          int64_t steps = 0;
          while (t.going()) {
            const absl::Time began = Now();
            const auto micro = t.Accumulate();
            COXSWAIN_RETURN_IF_ERROR(t.Backward(Forward(*model), micro));
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

  torch::Tensor Forward(torch::nn::LinearImpl& model) {
    if (flags_.step_ms > 0) {
      never_.WaitFor(absl::Milliseconds(flags_.step_ms));
      return model.weight.sum();
    }
    const int64_t side = model.options.in_features();
    return model.forward(torch::ones({1, side})).square().mean();
  }

  absl::Status TakeChecksums() {
    at::set_num_threads(1);
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto state,
        coxswain::torch::ElasticModuleState::Create(model_, optimizer_.get()));
    const absl::Time began = Now();
    coxswain::ChecksumOf(state->Tensors());
    COXSWAIN_RETURN_IF_ERROR(state->Digest().status());
    checksums_ = Now() - began;
    return absl::OkStatus();
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
              << " regroup_ms=" << Milliseconds(grown_ - ended_) << " leave_ms="
              << Milliseconds(recovered_ - regroup_.took - ended_)
              << " join_ms=" << Milliseconds(regroup_.joining)
              << " connect_ms=" << Milliseconds(regroup_.connecting)
              << " recover_ms="
              << Milliseconds(regroup_.took - regroup_.joining -
                              regroup_.connecting)
              << " wrapper_ms=" << Milliseconds(grown_ - recovered_)
              << " checksum_ms=" << Milliseconds(checksums_)
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
  absl::Time recovered_;
  coxswain::RecoveryReport regroup_;
  std::shared_ptr<torch::nn::LinearImpl> model_;
  std::shared_ptr<torch::optim::Adam> optimizer_;
  absl::Duration checksums_;
  coxswain::RecoveryReport report_;  // the newcomer's
  coxswain::CancelSignal never_;
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
  app.add_option("--step-ms", flags.step_ms,
                 "wait so long in place of forward and backward; 0: compute")
      ->check(CLI::Range(0, 60'000));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Job(flags).Run();
  if (status.ok()) return 0;
  std::cerr << status << std::endl;
  return 1;
}
