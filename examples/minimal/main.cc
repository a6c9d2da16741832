// The smallest training program: coxswain run --nproc 2 -- minimal
#include <torch/torch.h>

#include <iostream>

#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/follow_session.h"
#include "client/torch/manifest.h"
#include "hooks/planned_hook.h"

int main() {
  auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);

  // These lines make it data-parallel. value() ends the program on an error.
  auto manifest =
      coxswain::torch::DescribeJob(*model, "powersgd(start_step=10)").value();
  auto options = coxswain::SessionOptions::FromEnvironment().value();
  auto session = coxswain::Session::Join(options, manifest).value();
  auto world = session->World().value();
  coxswain::torch::DistributedDataParallelOptions follow;
  follow.make_hook = coxswain::MakePlannedHook;
  if (!coxswain::torch::FollowSession(*session, &follow).ok()) return 1;
  auto ddp = coxswain::torch::DistributedDataParallel::Create(
                 model, &world->communicator(),
                 coxswain::MakePlannedHook(*follow.plan).value(), follow)
                 .value();

  torch::manual_seed(session->rank());  // each rank has data of its own
  for (int batch = 0; batch < 100 && !ddp->finished(); ++batch) {
    auto x = torch::randn({32, 64});
    auto micro = ddp->Accumulate();  // as the job's plan says
    auto loss = (model->forward(x) - x.narrow(1, 0, 16)).square().mean();
    auto status = ddp->Backward(loss * micro.loss_scale);
    if (status.ok() && micro.sync)
      status = ddp->StepOptimizer(optimizer).status();
    if (!status.ok()) {
      std::cerr << status.message() << std::endl;
      return 1;  // the session tells the other ranks
    }
    if (batch % 20 == 19 && session->rank() == 0)
      std::cout << batch + 1 << " " << loss.item<float>() << std::endl;
  }
  return session->Leave("done").ok() ? 0 : 1;
}
