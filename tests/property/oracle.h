#ifndef COXSWAIN_TESTS_PROPERTY_ORACLE_H_
#define COXSWAIN_TESTS_PROPERTY_ORACLE_H_

#include <string>

#include "tests/property/case.h"
#include "tests/property/record.h"

namespace coxswain::property {

// What is wrong with a run, in a line or two; empty if it is as it has to be.
//
// In each step, from what the ranks contributed (their twins' sums):
//   - the average is, bit for bit, that of a single process which rounds where
//     the hook rounds (kAverage), and lies as near to the mean in float64 as
//     those roundings allow; or is near the formulas of the hook (kLowRank),
//     from the state that the hooks were in;
//   - nothing is lost: mean contribution + mean error before = average + mean
//     error after;
//   - all ranks hold the same bits, parameters, buckets and buffers;
//   - what no rank used stays as it was, with find_unused;
//   - a dropped step leaves the hook's state as it was;
//   - norms, clipping and the number of live ranks are right;
//   - between steps gradients change only by what the caller does.
std::string Verdict(const Case& one, const Record& record);

}  // namespace coxswain::property

#endif  // COXSWAIN_TESTS_PROPERTY_ORACLE_H_
