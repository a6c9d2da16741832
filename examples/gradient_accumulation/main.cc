// Gradient accumulation over batches of different sizes, as
// docs/gradient-synchronization.md explains it:
//   coxswain run --nproc 2 -- gradient_accumulation
#include <torch/torch.h>

#include <iostream>

#include "base/status_macros.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "hooks/registry/planned_hook.h"

namespace {

constexpr int kEpochs = 10;
constexpr int kBatches = 41;  // of each rank and epoch: 10 windows and a rest

absl::Status Train(coxswain::Session& session,
                   std::shared_ptr<torch::nn::LinearImpl> model,
                   coxswain::torch::DistributedDataParallelOptions options) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto world, session.World());
  COXSWAIN_RETURN_IF_ERROR(coxswain::torch::FollowSession(session, &options));
  options.make_hook = coxswain::MakePlannedHook;
  COXSWAIN_ASSIGN_OR_RETURN(auto hook,
                            coxswain::MakePlannedHook(*options.plan));
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto ddp,
      coxswain::torch::DistributedDataParallel::Create(
          model, &world->communicator(), std::move(hook), options));
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/100, /*gamma=*/0.5);

  torch::manual_seed(session.rank());  // each rank has data of its own
  int steps = 0;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (int i = 0; i < kBatches; ++i) {
      const auto rows = torch::randint(8, 33, {1}).item<int64_t>();
      const auto x = torch::randn({rows, 64});
      coxswain::Accumulator::Begin begin;
      begin.weight = static_cast<double>(rows);
      begin.end_of_data = i + 1 == kBatches;
      const coxswain::MicroBatch micro = ddp->Accumulate(begin);
      const auto loss =
          (model->forward(x) - x.narrow(1, 0, 16)).square().mean();
      COXSWAIN_RETURN_IF_ERROR(ddp->Backward(loss, micro));
      if (!micro.sync) continue;
      COXSWAIN_ASSIGN_OR_RETURN(const bool taken,
                                ddp->StepOptimizer(optimizer));
      for (int64_t n = 0; taken && n < micro.scheduler_steps; ++n) {
        scheduler.step();
      }
      if (++steps % 20 == 0 && session.rank() == 0) {
        std::cout << steps << " " << loss.item<float>() << std::endl;
      }
      if (ddp->stopping() || ddp->finished()) return absl::OkStatus();
    }
    // With tail=carry or drop there may be a rest.
    COXSWAIN_RETURN_IF_ERROR(ddp->Flush().status());
  }
  return absl::OkStatus();
}

absl::Status Run() {
  const auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  // What the program asks for; `coxswain run --plan` and `coxswain plan set`
  // change it.
  coxswain::torch::DistributedDataParallelOptions options;
  options.accumulation_steps = 4;
  options.terms.weighting = coxswain::schedule::Weighting::kSamples;
  options.skip_non_finite = true;
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto manifest,
      coxswain::torch::DescribeJob(*model, "allreduce", options));
  COXSWAIN_ASSIGN_OR_RETURN(const auto where,
                            coxswain::SessionOptions::FromEnvironment());
  COXSWAIN_ASSIGN_OR_RETURN(const auto session,
                            coxswain::Session::Join(where, manifest));
  const absl::Status trained =
      coxswain::Explain(*session, Train(*session, model, options));
  if (trained.ok()) return session->Leave("done");
  session->Leave(trained.message(), /*failed=*/true).IgnoreError();
  return trained;
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (status.ok()) return 0;
  std::cerr << status.message() << std::endl;
  return 1;
}
