#ifndef COXSWAIN_CLIENT_REDUCE_AGREEMENT_H_
#define COXSWAIN_CLIENT_REDUCE_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/reduce/bucket.h"

namespace coxswain {

// One line of text, such as
//   parameter 3 "conv.weight": float32 [64, 3, 7, 7] strides [147, 49, 7, 1]
// Strides are left out where they are row-major.
std::string DescribeParameter(int index, const ParameterSpec& parameter);

// For messages: "rank 3", or "ranks 0, 2" and how many more after the first 16.
std::string NameRanks(const std::vector<int>& ranks);

// Whether all ranks hold the same lines: called by the reducer before the
// first gradient travels, since ranks that differ in a parameter or an option
// would hang, or sum up what does not belong together. Collective; all ranks
// get the same answer. Costs one small all-reduce where they agree.
//
// FAILED_PRECONDITION where they do not: names the ranks that differ from rank
// 0, and shows lines that are on one side only, the first few of them: a rank
// that differs its own against rank 0's, the others those of the first that
// does. DATA_LOSS if a peer announces more than can be. Errors of the
// communicator as they are; `timeout` bounds each collective.
absl::Status CheckAgreement(Communicator& communicator,
                            const std::vector<std::string>& lines,
                            absl::Duration timeout);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_REDUCE_AGREEMENT_H_
