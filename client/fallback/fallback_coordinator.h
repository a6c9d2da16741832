#ifndef COXSWAIN_CLIENT_FALLBACK_FALLBACK_COORDINATOR_H_
#define COXSWAIN_CLIENT_FALLBACK_FALLBACK_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mesh.h"
#include "base/mutex.h"
#include "proto/rendezvous.pb.h"
#include "schedule/fallback_schedule.h"
#include "schedule/plan.h"

namespace coxswain {

// Serves the ranks of a generation while no coordinator can be reached: a
// schedule::FallbackSchedule behind the messages of the Attach stream. Lives in
// rank 0's session; its own rank attaches through FallbackClient, the others
// through FallbackServer. Thread-safe.
class FallbackCoordinator {
 public:
  struct Options {
    // Of the generation: a rank that attaches must have the same cluster, job
    // and generation.
    v1::Fence fence;
    int world_size = 0;
    Mesh mesh;  // empty: the job has none
    std::function<schedule::Plan()> plan;
    const Clock* clock = Clock::Real();
  };
  // The callbacks of an attachment. Both are called with the lock held: they
  // must not block, nor call the fallback coordinator.
  struct Callbacks {
    std::function<void(const v1::AttachEvent&)> on_event;
    // The attachment has ended, other than by Detach.
    std::function<void(const absl::Status&)> on_end;
  };
  using AttachmentId = uint64_t;

  explicit FallbackCoordinator(Options options);

  // Answers with Attached, and ends an earlier attachment of the rank. Fails
  // with
  //   INVALID_ARGUMENT     no such rank
  //   FAILED_PRECONDITION  another generation, or closed
  absl::StatusOr<AttachmentId> Attach(const v1::Hello& hello,
                                      Callbacks callbacks);
  // Takes a position, a ticket or a vote; fails with INVALID_ARGUMENT for
  // anything else, or one that is not valid. Ignored once the attachment has
  // ended.
  absl::Status Handle(AttachmentId id, v1::AttachRequest request);
  // Ends the attachment: what was sent over it does not count once this has
  // returned, and its callbacks are not called any more.
  void Detach(AttachmentId id);

  // Ends all decisions, and all attachments with FAILED_PRECONDITION.
  void Close();

 private:
  struct Attachment {
    int rank = 0;
    Callbacks callbacks;
  };

  absl::Status CheckHello(const v1::Hello& hello) const;
  void SendLocked(const schedule::FallbackSchedule::Messages& messages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogSuspensionLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  schedule::FallbackSchedule schedule_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  AttachmentId next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<AttachmentId, Attachment> attachments_ ABSL_GUARDED_BY(mutex_);
  std::map<int, AttachmentId> by_rank_ ABSL_GUARDED_BY(mutex_);
  std::string logged_suspension_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_FALLBACK_FALLBACK_COORDINATOR_H_
