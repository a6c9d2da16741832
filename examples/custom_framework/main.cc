// Softmax regression with arithmetic of its own, in place of any framework's:
//   coxswain run --nproc 2 -- custom_framework
#include <cmath>
#include <iostream>
#include <random>
#include <vector>

#include "train/train.h"

int main() {
  constexpr int kRows = 64, kInputs = 16, kClasses = 4;
  std::vector<float> weight(kClasses * kInputs), gradient(weight.size());
  std::mt19937 random;
  std::normal_distribution<float> noise;

  // The mean loss over rows that are drawn, and its gradient.
  const auto backward = [&] {
    for (float& element : gradient) element = 0;
    double loss = 0;
    for (int row = 0; row < kRows; ++row) {
      const int label = row % kClasses;
      float x[kInputs];
      for (int i = 0; i < kInputs; ++i)
        x[i] = noise(random) + (i % kClasses == label);
      double likelihood[kClasses] = {}, sum = 0;
      for (int c = 0; c < kClasses; ++c) {
        for (int i = 0; i < kInputs; ++i)
          likelihood[c] += weight[c * kInputs + i] * x[i];
        sum += likelihood[c] = std::exp(likelihood[c]);
      }
      loss -= std::log(likelihood[label] / sum) / kRows;
      for (int c = 0; c < kClasses; ++c)
        for (int i = 0; i < kInputs; ++i)
          gradient[c * kInputs + i] +=
              (likelihood[c] / sum - (c == label)) * x[i] / kRows;
    }
    return loss;
  };
  const auto descend = [&] {
    for (size_t i = 0; i < weight.size(); ++i) weight[i] -= 0.1f * gradient[i];
    return absl::OkStatus();
  };

  const absl::Status status = coxswain::Train(
      {.hook = "powersgd(start_step=10)"},
      {{"weight", {kClasses, kInputs}, weight.data(), gradient.data()}},
      {descend}, [&](coxswain::Training& t) {
        random.seed(t.rank());  // each rank has data of its own
        absl::Status step;
        while (step.ok() && t.going() && t.step() < 100) {
          step = t.Step(backward);
          if (t.step() % 20 == 0 && t.rank() == 0)
            std::cout << t.step() << " " << t.loss() << std::endl;
        }
        return step;
      });
  return status.ok() ? 0 : (std::cerr << status.message() << std::endl, 1);
}
