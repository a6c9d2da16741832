#ifndef COXSWAIN_CLIENT_REDUCE_AGREEMENT_H_
#define COXSWAIN_CLIENT_REDUCE_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/step_report.h"

namespace coxswain {

// Returns one line of text, such as
//   parameter 3 "conv.weight": float32 [64, 3, 7, 7] strides [147, 49, 7, 1]
// Strides are left out where they are row-major.
std::string DescribeParameter(int index, const ParameterSpec& parameter);

// Returns a text for messages: "rank 3", or "ranks 0, 2" and how many more
// after the first 16.
std::string NameRanks(const std::vector<int>& ranks);

// What is compared, in the words of messages.
struct AgreementWords {
  std::string what = "parameters, hook and options";
  // The communicator's ranks by their names; empty: their numbers in it.
  std::vector<int> ranks;
};

// Compares lines of text over all ranks: called by the reducer before the first
// gradient is sent, since ranks that differ in a parameter or an option would
// hang, or sum up unrelated gradients. Collective; all ranks get the same
// answer. Costs one small all-reduce if they agree.
//
// Fails with FAILED_PRECONDITION if the ranks differ: names those that differ
// from rank 0, and shows the first few lines that are on one side only: on a
// rank that differs its own against rank 0's, on the others those of the first
// that does. Fails with DATA_LOSS if a peer announces more than is possible,
// and with errors of the communicator; `timeout` bounds each collective.
absl::Status CheckAgreement(Communicator& communicator,
                            const std::vector<std::string>& lines,
                            absl::Duration timeout,
                            const AgreementWords& words = {});

// Returns a hash of the buckets' gradients and their order: equal on all ranks
// that exchange the same, and on every machine.
uint64_t HashLayout(const std::vector<Bucket>& buckets);

// A running hash of what has been exchanged, by which the coordinator finds a
// rank whose steps differ: the buckets' sizes, how many collectives were
// started, and the averages' norm. Equal on all ranks that have finished the
// same steps. Payload bytes are not part of it: a hook may send different
// amounts from each rank.
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

#endif  // COXSWAIN_CLIENT_REDUCE_AGREEMENT_H_
