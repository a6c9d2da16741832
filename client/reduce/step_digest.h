#ifndef COXSWAIN_CLIENT_REDUCE_STEP_DIGEST_H_
#define COXSWAIN_CLIENT_REDUCE_STEP_DIGEST_H_

#include <cstdint>
#include <vector>

#include "client/reduce/bucket.h"
#include "client/schedule/step_report.h"

namespace coxswain {

// Of which gradients in which order the buckets consist: equal on all ranks
// that exchange the same, and on every machine.
uint64_t HashLayout(const std::vector<Bucket>& buckets);

// A running hash of what has been exchanged, which tells a rank's coordinator
// whether it still is where the others are: the buckets' sizes, how many
// collectives were started, and the averages' norm. Equal on all ranks that
// have finished the same steps. Payload bytes are no part of it: a hook may
// send other amounts from each rank.
class StepDigest {
 public:
  // Adds a step that was exchanged to its end, also if it is rolled back.
  // `same_averages`: the hook leaves the same averages on all ranks.
  void Add(const StepReport& report, int64_t collectives, bool same_averages);

  uint64_t value() const { return value_; }

 private:
  void Mix(uint64_t bits);

  uint64_t value_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_STEP_DIGEST_H_
