#ifndef COXSWAIN_SCHEDULE_PIPELINE_RANDOM_LISTS_H_
#define COXSWAIN_SCHEDULE_PIPELINE_RANDOM_LISTS_H_

#include <string>
#include <vector>

#include "base/random.h"
#include "schedule/pipeline/schedule.h"

namespace coxswain::pipeline {

// For tests: lists of actions that are schedules, or nearly so.
using Lists = std::vector<Schedule::Actions>;

class Dice {
 public:
  explicit Dice(uint64_t stream) : numbers_(/*seed=*/36, stream) {}
  // Returns one of 0 to n - 1.
  int Below(size_t n) { return static_cast<int>(numbers_.Bits(next_++) % n); }

 private:
  CounterRandom numbers_;
  uint64_t next_ = 0;
};

// Returns a schedule of a random kind and size, some with waits for sends and
// with reductions, changed in up to four places.
Lists RandomLists(Dice& dice);

std::string TextOf(const Lists& lists);

}  // namespace coxswain::pipeline

#endif  // COXSWAIN_SCHEDULE_PIPELINE_RANDOM_LISTS_H_
