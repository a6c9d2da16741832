// The smallest training program: coxswain run --nproc 2 -- minimal
#include <torch/torch.h>

#include <iostream>

#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "client/torch/manifest.h"
#include "hooks/planned_hook.h"

int main() {
  auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);

  // Five lines make it data-parallel. value() ends the program on an error.
  auto manifest =
      coxswain::torch::DescribeJob(*model, "powersgd(start_step=10)").value();
  auto options = coxswain::SessionOptions::FromEnvironment().value();
  auto session = coxswain::Session::Join(options, manifest).value();
  auto world = session->World().value();
  auto ddp = coxswain::torch::DistributedDataParallel::Create(
                 model, &world->communicator(),
                 coxswain::MakePlannedHook(session->plan()).value())
                 .value();

  torch::manual_seed(session->rank());  // each rank has data of its own
  for (int step = 0; step < 100; ++step) {
    auto x = torch::randn({32, 64});
    auto loss = (model->forward(x) - x.narrow(1, 0, 16)).square().mean();
    if (auto status = ddp->Backward(loss); !status.ok()) {
      std::cerr << status.message() << std::endl;
      return 1;  // the session tells the other ranks
    }
    optimizer.step();
    optimizer.zero_grad();
    if (step % 20 == 19 && session->rank() == 0)
      std::cout << step + 1 << " " << loss.item<float>() << std::endl;
  }
  return session->Leave("done").ok() ? 0 : 1;
}
