// Goes on from a checkpoint of checkpoint_scenes.py, in libtorch, and saves
// another one: resume_in_cpp STEPS JOB. Jobs whose names begin so have int8,
// and are those of hook_state_scenes.py.

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "train/torch/train.h"

namespace {

struct Model : torch::nn::Module {
  virtual torch::Tensor Loss(int64_t step, int rank) = 0;
};

// The model and the data of the scene `in_cpp` of checkpoints.
struct Shared : Model {
  Shared() {
    weight = register_parameter("weight", torch::ones({3}, torch::kFloat64));
    bias = register_parameter("bias", torch::zeros({}, torch::kFloat64));
    register_buffer("seen", torch::zeros({}, torch::kInt64));
  }
  torch::Tensor Loss(int64_t step, int) override {
    const auto x = torch::arange(1, 4, torch::kFloat64) + double(step % 3);
    return ((x * weight).sum() + bias - 7).square();
  }
  torch::Tensor weight, bias;
};

// That of hook state: gradients are whole numbers, whatever has been trained.
struct Linear : Model {
  Linear() {
    weight = register_parameter("weight", torch::ones({1000}, torch::kFloat64));
  }
  torch::Tensor Loss(int64_t step, int rank) override {
    const auto x = torch::arange(1000) * (step % 5 + 3 + rank) % 17 - 8;
    return (x.to(torch::kFloat64) * weight).sum();
  }
  torch::Tensor weight;
};

}  // namespace

int main(int, char** arguments) {
  const bool has_hook = std::strncmp(arguments[2], "int8", 4) == 0;
  std::shared_ptr<Model> model;
  if (has_hook) {
    model = std::make_shared<Linear>();
  } else {
    model = std::make_shared<Shared>();
  }
  // The learning rate is that of the checkpoint.
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions(1));
  coxswain::torch::TrainOptions options;
  options.resume = "newest";
  if (has_hook) options.hook = "int8";
  options.ddp.terms.checkpoint_every = 1;
  const absl::Status status = coxswain::torch::Train(
      options, model, optimizer, [&](coxswain::torch::Training& training) {
        const int64_t begin = training.step();
        std::printf("RESUMED at %d with %d rows\n", int(begin),
                    int(training.counter("rows")));
        absl::Status step;
        while (step.ok() && training.step() < begin + atoi(arguments[1])) {
          training.counter("rows") += 5;
          step = training.Step(
              [&] { return model->Loss(training.step(), training.rank()); });
        }
        return step;
      });
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
