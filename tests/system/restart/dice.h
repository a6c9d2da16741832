#ifndef COXSWAIN_TESTS_SYSTEM_RESTART_DICE_H_
#define COXSWAIN_TESTS_SYSTEM_RESTART_DICE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"

namespace coxswain {

// Random choices of one run of a property test: a function of its seed.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed, /*stream=*/0x7e57) {}

  uint64_t Bits() { return random_.Bits(next_++); }
  // Returns a number from 0 to `count` - 1.
  size_t Below(size_t count) { return Bits() % count; }
  bool Chance(size_t of) { return Below(of) == 0; }

  template <typename Value>
  const Value& One(const std::vector<Value>& of) {
    return of[Below(of.size())];
  }

  // Returns one of the numbers at which a bound may lie, or any other.
  int64_t Number();
  // Returns the same, but mostly what an honest peer would send.
  int64_t Usual(int64_t below) {
    return Chance(6) ? Number() : static_cast<int64_t>(Below(below));
  }
  // Returns valid UTF-8 of a length at which a bound may lie: `bound`, one
  // more, or less; with letters of several bytes, quotes, and control
  // characters.
  std::string Text(size_t bound);
  // Returns the same, but mostly short and without anything special.
  std::string UsualText(size_t bound) {
    return Chance(4) ? Text(bound) : "word-" + std::to_string(Below(5));
  }
  // Returns any bytes.
  std::string Bytes(size_t most);

 private:
  const CounterRandom random_;
  uint64_t next_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_RESTART_DICE_H_
