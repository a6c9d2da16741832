#ifndef COXSWAIN_CLIENT_COMM_NCCL_NCCL_MEETING_H_
#define COXSWAIN_CLIENT_COMM_NCCL_NCCL_MEETING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "client/comm/communicator.h"
#include "client/comm/nccl/nccl_api.h"

namespace coxswain {

// One unique id for so many ranks, where NCCL takes several.
constexpr int kNcclRanksPerRoot = 128;

// What a rank brings to a meeting.
struct NcclPresence {
  // Names the GPU among all of all hosts.
  std::string gpu;
  // When to give up, by `clock`.
  absl::Time end;
  Clock* clock = nullptr;
};

// Brings the ranks of options.id together in options.store before any of them
// enters NCCL, which could not be left again as well as this can: rank 0 waits
// for a message of each, checks that they fit together, and answers all; then
// those that are to be roots make unique ids, and all get them. The keys are
// named by options.id, which is used once, and so are the ids.
//   DEADLINE_EXCEEDED    names a rank that did not come
//   FAILED_PRECONDITION  two ranks use the same GPU, or other versions of NCCL
//   UNAVAILABLE          rank 0 gave up for another reason, which it names
// and errors of the store, of options.cancel and of NCCL.
absl::StatusOr<std::vector<NcclUniqueId>> MeetForNccl(
    const CommunicatorOptions& options, const NcclPresence& self, NcclApi* api);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_NCCL_MEETING_H_
