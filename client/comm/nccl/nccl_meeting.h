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

// The number of ranks per unique id, where NCCL takes several.
constexpr int kNcclRanksPerRoot = 128;

// What a rank brings to a meeting.
struct NcclPresence {
  // Names the GPU among all of all hosts.
  std::string gpu;
  // The deadline, by `clock`.
  absl::Time end;
  Clock* clock = nullptr;
};

// Brings the ranks of options.id together in options.store before any of them
// enters NCCL, which is harder to leave again: rank 0 waits for a message of
// each, checks that they fit together, and answers all; then the roots among
// them make unique ids, and all get them. The keys contain options.id, which is
// used once, and so are the ids. Fails with
//   DEADLINE_EXCEEDED    names a rank that did not arrive
//   FAILED_PRECONDITION  two ranks use the same GPU, or other versions of NCCL
//   UNAVAILABLE          rank 0 failed for another reason, which it names
// and with errors of the store, of options.cancel and of NCCL.
absl::StatusOr<std::vector<NcclUniqueId>> MeetForNccl(
    const CommunicatorOptions& options, const NcclPresence& self, NcclApi* api);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_NCCL_MEETING_H_
