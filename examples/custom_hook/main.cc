// A training program with a hook of its own, which it names like any other:
//   coxswain run --nproc 2 -- custom_hook --hook 'fp16(predivide(factor=2))'
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "client/session/session.h"
#include "client/torch/distributed_data_parallel.h"
#include "examples/custom_hook/predivide.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/registry/yaml_spec.h"

namespace {

int Fail(const absl::Status& status) {
  std::cerr << "custom_hook: " << status.message() << std::endl;
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string hook = "fp16(predivide(factor=2))";
  if (argc == 3 && std::string(argv[1]) == "--hook") hook = argv[2];
  // Before the first spec that names it is read.
  const absl::Status registered = coxswain::examples::RegisterPredivide();
  if (!registered.ok()) return Fail(registered);
  const auto spec = coxswain::ReadHookArgument(hook);
  if (!spec.ok()) return Fail(spec.status());

  auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);
  auto manifest = coxswain::torch::DescribeJob(*model, *spec).value();
  auto options = coxswain::SessionOptions::FromEnvironment().value();
  auto session = coxswain::Session::Join(options, manifest).value();
  auto world = session->World().value();
  coxswain::torch::DistributedDataParallelOptions follow;
  follow.make_hook = coxswain::MakePlannedHook;
  const absl::Status followed =
      coxswain::torch::FollowSession(*session, &follow);
  if (!followed.ok()) return Fail(followed);
  auto ddp = coxswain::torch::DistributedDataParallel::Create(
                 model, &world->communicator(),
                 coxswain::MakePlannedHook(*follow.plan).value(), follow)
                 .value();

  torch::manual_seed(session->rank());
  for (int batch = 0; batch < 100 && !ddp->finished(); ++batch) {
    auto x = torch::randn({32, 64});
    const auto micro = ddp->Accumulate();
    auto loss = (model->forward(x) - x.narrow(1, 0, 16)).square().mean();
    absl::Status status = ddp->Backward(loss, micro);
    if (status.ok() && micro.sync)
      status = ddp->StepOptimizer(optimizer).status();
    if (!status.ok()) return Fail(status);
    if (batch % 20 == 19 && session->rank() == 0)
      std::cout << batch + 1 << " " << loss.item<float>() << std::endl;
  }
  return session->Leave("done").ok() ? 0 : 1;
}
