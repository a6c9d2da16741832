// A training program whose workers may come and go, as docs/elastic.md explains
// it:
//   coxswain run --nproc 3 --min-workers 2 --max-restarts 1 -- elastic
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "base/status_macros.h"
#include "client/elastic/drain_signal.h"
#include "client/torch/elastic/elastic_training.h"
#include "hooks/registry/planned_hook.h"

namespace {

using coxswain::torch::ElasticTraining;

constexpr int64_t kRows = 32;  // of a batch

// Returns the rows from `first` on of the endless data: the same on all ranks.
torch::Tensor Rows(int64_t first) {
  torch::manual_seed(first);
  return torch::randn({kRows, 64});
}

absl::Status Train(int64_t steps) {
  const auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(/*lr=*/0.05).momentum(0.9));

  coxswain::torch::ElasticTrainingOptions options;
  COXSWAIN_ASSIGN_OR_RETURN(options.run.session,
                            coxswain::SessionOptions::FromEnvironment());
  options.hook = "powersgd(rank=2,start_step=10)";
  options.ddp.make_hook = coxswain::MakePlannedHook;
  // SIGTERM: finish the step, and leave.
  COXSWAIN_RETURN_IF_ERROR(coxswain::DrainOnSignal());
  options.run.drain_requested = coxswain::DrainSignalled;

  // Runs once in each generation of the job, from the step that the job is at.
  return ElasticTraining::Run(
      options, model, optimizer, [&](ElasticTraining& t) -> absl::Status {
        std::cout << "rank " << t.rank() << " of " << t.world_size() << " pid "
                  << getpid() << " goes on from step " << t.step() << std::endl;
        while (t.step() < steps && t.going()) {
          const auto x = Rows(t.counter("rows") + t.rank() * kRows);
          const auto micro = t.Accumulate();
          const auto loss =
              (model->forward(x) - x.narrow(1, 0, 16).abs()).square().mean();
          COXSWAIN_RETURN_IF_ERROR(t.Backward(loss, micro));
          t.counter("rows") += t.world_size() * kRows;
          if (!micro.sync) continue;
          COXSWAIN_RETURN_IF_ERROR(t.StepOptimizer().status());
          if (t.step() % 500 == 0 && t.rank() == 0) {
            std::cout << t.step() << " " << loss.item<float>() << std::endl;
          }
        }
        return absl::OkStatus();
      });
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const absl::Status status = Train(argc > 1 ? std::atoll(argv[1]) : 10'000);
  if (status.ok()) return 0;
  std::cerr << status.message() << std::endl;
  return 1;
}
