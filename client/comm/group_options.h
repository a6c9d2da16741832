#ifndef COXSWAIN_CLIENT_COMM_GROUP_OPTIONS_H_
#define COXSWAIN_CLIENT_COMM_GROUP_OPTIONS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"

namespace coxswain {

// For back ends that connect through a store: INVALID_ARGUMENT says what makes
// no sense.
absl::Status CheckGroupOptions(const CommunicatorOptions& options,
                               absl::string_view backend);

// The options of a communicator of these ranks of `parent`, this rank among
// them: the `number`-th of that list. Its id is one of its own.
CommunicatorOptions SplitOptions(const CommunicatorOptions& parent,
                                 const std::vector<int>& ranks, int64_t number);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GROUP_OPTIONS_H_
