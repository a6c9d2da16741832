#ifndef COXSWAIN_CLIENT_COMM_IN_PROCESS_IN_PROCESS_WORLD_H_
#define COXSWAIN_CLIENT_COMM_IN_PROCESS_IN_PROCESS_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "client/comm/communicator.h"
#include "client/comm/in_process/collective.h"

namespace coxswain {

// One process group whose ranks live in one process: for tests, and for
// programs with a thread per rank. Has every ability; reduces in rank order, so
// results do not depend on timing; nothing leaves the process.
//
// A rank whose communicator was aborted, failed or was destroyed counts as
// gone, like a broken connection: a caller that waits for it gets UNAVAILABLE.
//
// Thread-safe. The communicators keep the world alive.
class InProcessWorld : public std::enable_shared_from_this<InProcessWorld> {
 public:
  // `timeout` bounds the wait for the other ranks in one operation.
  static std::shared_ptr<InProcessWorld> Create(
      int size, absl::Duration timeout = absl::Minutes(5));

  // Returns the communicator of `rank`; to be made once for each.
  std::unique_ptr<Communicator> MakeRank(int rank);

  // The following is for the communicators.

  // Meets the other ranks in the collective of this sequence number. Blocks.
  absl::Status Meet(int rank, const CollectivePart& part);

  // A message in flight: its sender's or its receiver's half.
  struct Message {
    Span span;
    bool is_send;
    int peer;  // of the rank that posted it
    bool ended = false;
    absl::Status status;
  };
  // Posts a half, so that halves pair up in the order of these calls.
  std::shared_ptr<Message> Post(int rank, bool is_send, Span span, int peer,
                                uint32_t tag);
  // Waits for the other half. Blocks.
  absl::Status Await(int rank, uint32_t tag,
                     const std::shared_ptr<Message>& message);

  // Meets the other ranks of `ranks` in their `count`-th split by this list,
  // from 0, and returns the world that they make. Blocks. Fails with
  // UNAVAILABLE and DEADLINE_EXCEEDED, naming the ranks that are missing.
  absl::StatusOr<std::shared_ptr<InProcessWorld>> MeetToSplit(
      int rank, const std::vector<int>& ranks, int64_t count);

  // Marks `rank` as gone, and wakes the ranks that wait for it.
  void Leave(int rank);

 private:
  struct Meeting {
    std::vector<const CollectivePart*> parts;  // null: has not come
    int arrived = 0;
    bool closed = false;  // all have come; the last of them computes
    bool ended = false;
    absl::Status result;
  };
  // A split that its members are about to make.
  struct Assembly {
    std::set<int> missing;
    std::shared_ptr<InProcessWorld> world;
  };
  // The list, and the number of its split.
  using SplitKey = std::pair<std::vector<int>, int64_t>;
  // Sender, receiver, tag.
  using Channel = std::tuple<int, int, uint32_t>;

  InProcessWorld(int size, absl::Duration timeout);
  // Return the ranks that a meeting lacks, and whether any of `ranks` is gone.
  std::vector<int> MissingLocked(const Meeting& meeting) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  template <typename Ranks>
  bool AnyGoneLocked(const Ranks& ranks) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until a meeting has ended; withdraws from it if it cannot.
  absl::Status AwaitMeetingLocked(int rank, absl::string_view what,
                                  Meeting* meeting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int size_;
  const absl::Duration timeout_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<bool> gone_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::shared_ptr<Meeting>> meetings_
      ABSL_GUARDED_BY(mutex_);
  std::map<SplitKey, std::shared_ptr<Assembly>> assemblies_
      ABSL_GUARDED_BY(mutex_);
  // Halves without their other half; one channel holds one kind only.
  std::map<Channel, std::deque<std::shared_ptr<Message>>> messages_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_IN_PROCESS_IN_PROCESS_WORLD_H_
