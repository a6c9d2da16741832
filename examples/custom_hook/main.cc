// A training program with hooks of its own, which it names like any other:
//   coxswain run --nproc 2 -- custom_hook --hook 'fp16(predivide(factor=2))'
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "examples/custom_hook/cyclic.h"
#include "examples/custom_hook/predivide.h"
#include "hooks/registry/yaml_spec.h"
#include "train/torch/train.h"

int main(int argc, char** argv) {
  std::string hook = "fp16(predivide(factor=2))";
  if (argc == 3 && std::string(argv[1]) == "--hook") hook = argv[2];
  auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);

  // Before the first spec that names it is read.
  absl::Status status = coxswain::examples::RegisterPredivide();
  if (status.ok()) status = coxswain::examples::RegisterCyclic();
  const auto spec = coxswain::ReadHookArgument(hook);
  if (status.ok()) status = spec.status();
  if (status.ok()) {
    status =
        coxswain::torch::Train({.hook = *spec}, model, optimizer, [&](auto& t) {
          torch::manual_seed(t.rank());  // each rank has data of its own
          absl::Status step;
          while (step.ok() && t.going() && t.step() < 100) {
            step = t.Step([&] {
              const auto x = torch::randn({32, 64});
              return (model->forward(x) - x.narrow(1, 0, 16)).square().mean();
            });
            if (t.step() % 20 == 0 && t.rank() == 0)
              std::cout << t.step() << " " << t.loss().template item<float>()
                        << std::endl;
          }
          return step;
        });
  }
  return status.ok() ? 0 : (std::cerr << status.message() << std::endl, 1);
}
