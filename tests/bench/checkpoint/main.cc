// What a checkpoint costs training: two ranks, threads of this process, train a
// model of 25 million parameters by powersgd, and save after each step, by
// turns beside training and at once. Prints the seconds that each stops the
// ranks, as JSON.

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "client/checkpoint/training_state.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/module_checkpoint.h"
#include "client/torch/state_bytes.h"
#include "hooks/registry/planned_hook.h"
#include "nlohmann/json.hpp"
#include "server/coordinator.h"

namespace coxswain::torch {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kSide = 1024;
constexpr int kLayers = 24;  // 25.2 million parameters
constexpr char kHook[] = "powersgd(rank=4,start_step=2)";
constexpr absl::Duration kTimeout = absl::Minutes(5);

// Seconds, by sample.
struct Times {
  std::vector<double> pause;  // of training, for the copy
  std::vector<double> rest;   // of that save, beside training
  std::vector<double> at_once;
};

double Since(absl::Time start) {
  return absl::ToDoubleSeconds(Clock::Real()->Now() - start);
}

class Rank {
 public:
  Rank(const std::string& coordinator, int slot, int samples)
      : coordinator_(coordinator), slot_(slot), samples_(samples) {}

  absl::Status Run() {
    at::set_num_threads(1);
    COXSWAIN_RETURN_IF_ERROR(Connect());
    for (int warm_up = 0; warm_up < 4; ++warm_up) {
      COXSWAIN_RETURN_IF_ERROR(Step());
    }
    for (int sample = -1; sample < samples_; ++sample) {
      Times times;
      COXSWAIN_RETURN_IF_ERROR(SaveBeside(&times));
      COXSWAIN_RETURN_IF_ERROR(SaveAtOnce(&times));
      if (sample < 0) continue;  // memory that later samples use again
      times_.pause.push_back(times.pause[0]);
      times_.rest.push_back(times.rest[0]);
      times_.at_once.push_back(times.at_once[0]);
    }
    return session_->Leave("done");
  }
  const Times& times() const { return times_; }

 private:
  absl::Status Connect() {
    model_ = std::make_shared<::torch::nn::SequentialImpl>();
    for (int layer = 0; layer < kLayers; ++layer) {
      model_->push_back(::torch::nn::Linear(
          ::torch::nn::LinearOptions(kSide, kSide).bias(false)));
    }
    optimizer_ = std::make_unique<::torch::optim::SGD>(
        model_->parameters(), ::torch::optim::SGDOptions(1e-3).momentum(0.9));
    DistributedDataParallelOptions options;
    COXSWAIN_ASSIGN_OR_RETURN(const JobManifest manifest,
                              DescribeJob(*model_, kHook, options));
    SessionOptions joining;
    joining.coordinator = coordinator_;
    joining.job = "bench";
    joining.identity = {"host-a", slot_};
    joining.host = "host-a";
    joining.world_size = kRanks;
    COXSWAIN_ASSIGN_OR_RETURN(session_, Session::Join(joining, manifest));
    COXSWAIN_ASSIGN_OR_RETURN(world_, session_->World());
    COXSWAIN_RETURN_IF_ERROR(FollowSession(*session_, &options));
    COXSWAIN_ASSIGN_OR_RETURN(auto hook, MakePlannedHook(*options.plan));
    COXSWAIN_ASSIGN_OR_RETURN(
        ddp_, DistributedDataParallel::Create(model_, &world_->communicator(),
                                              std::move(hook), options));
    ModuleCheckpoint::Options saving;
    saving.make_hook = MakePlannedHook;
    saver_ = std::make_unique<ModuleCheckpoint>(*session_, model_,
                                                optimizer_.get(), saving);
    return absl::OkStatus();
  }

  absl::Status Step() {
    const MicroBatch micro = ddp_->Accumulate();
    const auto x = ::torch::randn({4, kSide});
    const auto loss = model_->forward(x).square().mean();
    COXSWAIN_RETURN_IF_ERROR(ddp_->Backward(loss * micro.loss_scale));
    ++step_;
    return ddp_->StepOptimizer(*optimizer_).status();
  }

  // Ranks come to a save together, as they do after a step.
  absl::Status Together() {
    return session_->Barrier("", absl::StrCat("save/", step_), kTimeout);
  }

  absl::Status SaveBeside(Times* times) {
    COXSWAIN_RETURN_IF_ERROR(Step());
    COXSWAIN_RETURN_IF_ERROR(Together());
    const absl::Time start = Clock::Real()->Now();
    COXSWAIN_RETURN_IF_ERROR(saver_->Save(*ddp_, "a sample").status());
    times->pause.push_back(Since(start));
    COXSWAIN_RETURN_IF_ERROR(saver_->Finish(kTimeout));
    times->rest.push_back(Since(start) - times->pause[0]);
    return Forget();
  }

  absl::Status SaveAtOnce(Times* times) {
    COXSWAIN_RETURN_IF_ERROR(Step());
    COXSWAIN_RETURN_IF_ERROR(Together());
    const absl::Time start = Clock::Real()->Now();
    std::map<std::string, std::string> blobs;
    if (session_->rank() == 0) {
      COXSWAIN_RETURN_IF_ERROR(SaveModule(*model_, &blobs[".model"]));
      COXSWAIN_ASSIGN_OR_RETURN(blobs[".optimizer"],
                                SaveOptimizer(*optimizer_));
    }
    COXSWAIN_RETURN_IF_ERROR(SaveTrainingState(session_->checkpoints(),
                                               world_->communicator(), step_,
                                               ddp_->hook(), blobs));
    times->at_once.push_back(Since(start));
    return Forget();
  }

  // So that the store does not fill up.
  absl::Status Forget() {
    COXSWAIN_RETURN_IF_ERROR(
        session_->Barrier("", absl::StrCat("saved/", step_), kTimeout));
    if (session_->rank() != 0) return absl::OkStatus();
    COXSWAIN_ASSIGN_OR_RETURN(const auto list, session_->checkpoints().List());
    for (const CheckpointDescription& checkpoint : list) {
      COXSWAIN_RETURN_IF_ERROR(session_->checkpoints().Delete(checkpoint.id));
    }
    return absl::OkStatus();
  }

  const std::string coordinator_;
  const int slot_;
  const int samples_;
  std::shared_ptr<::torch::nn::SequentialImpl> model_;
  std::unique_ptr<::torch::optim::SGD> optimizer_;
  std::unique_ptr<Session> session_;
  std::shared_ptr<ProcessGroup> world_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<ModuleCheckpoint> saver_;
  int64_t step_ = 0;
  Times times_;
};

// Returns the slowest of each: the ranks wait for it.
std::vector<double> Slowest(const std::vector<double>& a,
                            const std::vector<double>& b) {
  std::vector<double> slowest;
  for (size_t i = 0; i < a.size(); ++i) {
    slowest.push_back(std::max(a[i], b[i]));
  }
  return slowest;
}

absl::Status Measure(const std::string& folder, int samples) {
  server::CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.state_dir = folder;
  COXSWAIN_ASSIGN_OR_RETURN(const auto coordinator,
                            server::Coordinator::Start(options));
  const std::string address = absl::StrCat("127.0.0.1:", coordinator->port());
  Rank first(address, 0, samples);
  Rank second(address, 1, samples);
  absl::Status statuses[kRanks];
  std::thread other([&] { statuses[1] = second.Run(); });
  statuses[0] = first.Run();
  other.join();
  for (const absl::Status& status : statuses) COXSWAIN_RETURN_IF_ERROR(status);
  nlohmann::json json;
  json["pause"] = Slowest(first.times().pause, second.times().pause);
  json["rest"] = Slowest(first.times().rest, second.times().rest);
  json["at_once"] = Slowest(first.times().at_once, second.times().at_once);
  std::cout << json.dump() << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::torch

int main(int argc, char** argv) {
  CLI::App app("Times checkpoints of a small job");
  std::string folder;
  int samples = 5;
  app.add_option("--folder", folder, "for the coordinator")->required();
  app.add_option("--samples", samples)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  coxswain::SetLogLevel("warning");
  const absl::Status status = coxswain::torch::Measure(folder, samples);
  if (status.ok()) return 0;
  std::cerr << "checkpoint_worker: " << status << std::endl;
  return 1;
}
