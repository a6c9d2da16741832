#ifndef COXSWAIN_TESTS_CONFORMANCE_LOCKSTEP_WORLD_H_
#define COXSWAIN_TESTS_CONFORMANCE_LOCKSTEP_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/comm/in_process/collective.h"

namespace coxswain {

// A process group whose ranks one thread can drive in turn: nothing blocks,
// and no thread is started. A collective ends for all ranks inside the call
// of the rank that starts it last, on that rank's thread; sums run in rank
// order. Split does not block either. Has every collective, no messages.
//
// Thread-safe. The communicators keep the world alive.
class LockstepWorld : public std::enable_shared_from_this<LockstepWorld> {
 public:
  static std::shared_ptr<LockstepWorld> Create(int size);

  // Returns the communicator of `rank`. Called once for each rank.
  std::unique_ptr<Communicator> MakeRank(int rank);

  // The following is for the communicators.

  // Adds `rank`'s part of the collective of this sequence number.
  WorkPtr Meet(int rank, const CollectivePart& part);
  // Returns the world of the `number`-th group among these ranks.
  std::shared_ptr<LockstepWorld> Group(const std::vector<int>& ranks,
                                       int64_t number);
  // Ends everything that waits, in the groups too.
  void Abort(const absl::Status& status);

 private:
  struct Meeting {
    std::map<int, CollectivePart> parts;  // by rank
    std::vector<WorkPtr> works;
  };

  explicit LockstepWorld(int size) : size_(size) {}

  const int size_;
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // not OK once aborted
  std::map<uint64_t, Meeting> meetings_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::vector<int>, int64_t>, std::shared_ptr<LockstepWorld>>
      groups_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_LOCKSTEP_WORLD_H_
