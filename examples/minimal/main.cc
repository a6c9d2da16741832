// The smallest training program: coxswain run --nproc 2 -- minimal
#include <torch/torch.h>

#include "train/torch/train.h"

int main() {
  auto model = std::make_shared<torch::nn::LinearImpl>(64, 16);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.1);
  const absl::Status status = coxswain::torch::Train(
      {.hook = "powersgd(start_step=10)"}, model, optimizer, [&](auto& t) {
        torch::manual_seed(t.rank());  // each rank has data of its own
        absl::Status step;
        while (step.ok() && t.going() && t.step() < 100) {
          step = t.Step([&] {
            const auto x = torch::randn({32, 64});
            return (model->forward(x) - x.narrow(1, 0, 16)).square().mean();
          });
          if (t.step() % 20 == 0 && t.rank() == 0)
            std::cout << t.step() << " " << t.loss().item() << std::endl;
        }
        return step;
      });
  return status.ok() ? 0 : (std::cerr << status.message() << std::endl, 1);
}
