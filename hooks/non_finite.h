#ifndef COXSWAIN_HOOKS_NON_FINITE_H_
#define COXSWAIN_HOOKS_NON_FINITE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"
#include "client/reduce/hook.h"

namespace coxswain {

// For exchanges of which all ranks have found out that something in them is
// not finite: how they find out whose gradient it was, with one more
// collective. Used by one exchange, on its thread:
//
//   NonFiniteSearch search(bucket, parameters);   // on all ranks
//   return search.Start(communicator);            // from Advance
//   ... search.Found();                           // once the Work has ended
class NonFiniteSearch {
 public:
  // Looks through the bucket, which must still hold this rank's gradients.
  NonFiniteSearch(const Bucket& bucket,
                  const std::vector<ParameterSpec>& parameters);

  // One all-reduce of an int32 per rank.
  WorkPtr Start(Communicator& communicator);

  // Returns the first gradient of each rank that has one that is not finite, by
  // rank. Empty if all gradients were finite, and only a sum or a scale
  // overflowed.
  std::vector<NonFiniteGradient> Found() const;

 private:
  std::vector<std::string> names_;  // of the bucket's gradients
  int32_t own_ = 0;                 // 1 + number of the first one, or 0
  std::shared_ptr<std::vector<int32_t>> by_rank_;
};

// Returns whether an element is infinite or NaN. False for what has no such
// elements, and for what is not in the CPU's memory.
bool AnyNonFinite(const Span& span);

// One line, for one rank of the job to print.
void WarnNonFinite(absl::string_view spec, int64_t step, const Bucket& bucket,
                   const std::vector<NonFiniteGradient>& found);

// Sets all elements, which are of a floating-point type, to NaN.
void FillWithNan(const Span& span);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_NON_FINITE_H_
