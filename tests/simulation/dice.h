#ifndef COXSWAIN_TESTS_SIMULATION_DICE_H_
#define COXSWAIN_TESTS_SIMULATION_DICE_H_

#include <cstdint>

#include "absl/time/time.h"
#include "base/random.h"

namespace coxswain::simulation {

// Draws that depend on the seed alone, and on how many came before.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t stream) : random_(seed, stream) {}

  uint64_t Bits() { return random_.Bits(count_++); }
  bool Chance(double probability) {
    return random_.Uniform(count_++) < probability;
  }
  // Returns a number from `low` to `high`, both included.
  int Int(int low, int high) {
    return low +
           static_cast<int>(Bits() % static_cast<uint64_t>(high - low + 1));
  }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return low + (high - low) * random_.Uniform(count_++);
  }

 private:
  CounterRandom random_;
  uint64_t count_ = 0;
};

}  // namespace coxswain::simulation

#endif  // COXSWAIN_TESTS_SIMULATION_DICE_H_
