// Goes on from a checkpoint of checkpoint_scenes.py, in libtorch, and saves
// another one: resume_in_cpp STEPS JOB. Jobs whose names begin so have int8.

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "train/torch/train.h"

namespace {

// The model and the data of the scene `in_cpp`.
struct Model : torch::nn::Module {
  Model() {
    weight = register_parameter("weight", torch::ones({3}, torch::kFloat64));
    bias = register_parameter("bias", torch::zeros({}, torch::kFloat64));
    register_buffer("seen", torch::zeros({}, torch::kInt64));
  }
  torch::Tensor Loss(int64_t step) {
    const auto x = torch::arange(1, 4, torch::kFloat64) + double(step % 3);
    return ((x * weight).sum() + bias - 7).square();
  }
  torch::Tensor weight, bias;
};

}  // namespace

int main(int, char** arguments) {
  auto model = std::make_shared<Model>();
  // The learning rate is that of the checkpoint.
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1));
  coxswain::torch::TrainOptions options;
  options.resume = "newest";
  if (std::strncmp(arguments[2], "int8", 4) == 0) options.hook = "int8";
  options.ddp.terms.checkpoint_every = 1;
  const absl::Status status = coxswain::torch::Train(
      options, model, optimizer, [&](coxswain::torch::Training& training) {
        const int64_t begin = training.step();
        std::printf("RESUMED at %d with %d rows\n", int(begin),
                    int(training.counter("rows")));
        absl::Status step;
        while (step.ok() && training.step() < begin + atoi(arguments[1])) {
          training.counter("rows") += 5;
          step = training.Step([&] { return model->Loss(training.step()); });
        }
        return step;
      });
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
