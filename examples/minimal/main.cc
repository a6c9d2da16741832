// The smallest training program: coxswain run --nproc 2 -- minimal
#include <torch/torch.h>

#include <iostream>

#include "base/status_macros.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "hooks/registry/planned_hook.h"

absl::Status Train() {
  auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);

  // These lines make it data-parallel. Each returns its error, if it has one.
  COXSWAIN_ASSIGN_OR_RETURN(
      auto manifest,
      coxswain::torch::DescribeJob(*model, "powersgd(start_step=10)"));
  COXSWAIN_ASSIGN_OR_RETURN(auto options,
                            coxswain::SessionOptions::FromEnvironment());
  COXSWAIN_ASSIGN_OR_RETURN(auto session,
                            coxswain::Session::Join(options, manifest));
  COXSWAIN_ASSIGN_OR_RETURN(auto world, session->World());
  coxswain::torch::DistributedDataParallelOptions follow;
  follow.make_hook = coxswain::MakePlannedHook;
  COXSWAIN_RETURN_IF_ERROR(coxswain::torch::FollowSession(*session, &follow));
  COXSWAIN_ASSIGN_OR_RETURN(auto hook, coxswain::MakePlannedHook(*follow.plan));
  COXSWAIN_ASSIGN_OR_RETURN(
      auto ddp, coxswain::torch::DistributedDataParallel::Create(
                    model, &world->communicator(), std::move(hook), follow));

  torch::manual_seed(session->rank());  // each rank has data of its own
  for (int batch = 0; batch < 100 && !ddp->finished(); ++batch) {
    auto x = torch::randn({32, 64});
    auto micro = ddp->Accumulate();  // as the job's plan says
    auto loss = (model->forward(x) - x.narrow(1, 0, 16)).square().mean();
    COXSWAIN_RETURN_IF_ERROR(ddp->Backward(loss * micro.loss_scale));
    if (micro.sync)
      COXSWAIN_RETURN_IF_ERROR(ddp->StepOptimizer(optimizer).status());
    if (batch % 20 == 19 && session->rank() == 0)
      std::cout << batch + 1 << " " << loss.item<float>() << std::endl;
  }
  return session->Leave("done");
}

int main() {
  const absl::Status status = Train();  // the session tells the other ranks
  if (!status.ok()) std::cerr << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
