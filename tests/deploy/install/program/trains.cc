// As main.cc, by one call: every rank has one gradient, rank + 1, and subtracts
// the average over the ranks.
#include <cstdio>
#include <string>
#include <vector>

#include "coxswain/train/train.h"

int main() {
  constexpr int kSteps = 3, kElements = 1000;
  std::vector<float> weight(kElements), gradient(kElements);
  const auto descend = [&] {
    for (int i = 0; i < kElements; ++i) weight[i] -= gradient[i];
    return absl::OkStatus();
  };
  const absl::Status status = coxswain::Train(
      {}, {{"weight", {kElements}, weight.data(), gradient.data()}}, {descend},
      [&](coxswain::Training& training) {
        absl::Status step;
        while (step.ok() && training.going() && training.step() < kSteps) {
          step = training.Step([&] {
            gradient.assign(kElements, training.rank() + 1.0f);
            return 0.0;
          });
        }
        if (step.ok()) {
          std::printf("rank %d of %d: %g\n", training.rank(),
                      training.world_size(), weight[kElements - 1]);
        }
        return step;
      });
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
