#ifndef COXSWAIN_CLIENT_FALLBACK_FALLBACK_CLIENT_H_
#define COXSWAIN_CLIENT_FALLBACK_FALLBACK_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "base/mesh.h"
#include "base/mutex.h"
#include "base/tls_files.h"
#include "client/fallback/fallback_coordinator.h"
#include "client/fallback/fallback_server.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/retry.h"
#include "schedule/epoch.h"
#include "schedule/plan.h"

namespace coxswain {

// Switches a rank between its leaders: the coordinator, or, while that cannot
// be reached, the fallback coordinator of its generation, or none; never two of
// them. A part of Session, which notifies it of changes of the Attach stream.
// On rank 0 it also owns the fallback coordinator.
//
//             lost                   accepted there
//   coordinator ------> none ------------------------> fallback coordinator
//        ^               | ^                                     |
//        |               | +-------- that stream ended ----------+
//        |               |                                       |
//        +-- released <--+<--------- accepted again -------------+
//
// A rank that has followed the fallback coordinator follows the coordinator
// again only once the fallback coordinator has confirmed the release, or cannot
// decide ever again: see schedule::Epoch. Where the fallback coordinator does
// not answer, the data connections to its rank do not work either.
//
// Threading: one thread of its own opens and closes the streams to the fallback
// coordinator; the methods are safe from any other, and do not wait for the
// network.
class FallbackClient {
 public:
  struct Options {
    bool on = true;
    int rank = 0;
    int world_size = 1;
    Mesh mesh;  // empty: the job has none
    // The fence of the generation; the term may be any.
    v1::Fence fence;
    // Where rank 0 listens for the others.
    std::string host;
    // How the others connect to it.
    ClientSecurity security;
    // How long a lost stream may take to come back before the rank attaches to
    // the fallback coordinator.
    absl::Duration after = absl::Milliseconds(500);
    // How long the fallback coordinator may take to answer before it is tried
    // again.
    absl::Duration answer = absl::Seconds(2);
    // The pauses before it is tried again, and the clock of all of it.
    RetryPolicy retry;
    // Connects to another rank's fallback coordinator.
    std::function<std::shared_ptr<CoordinatorStub>(const std::string& address)>
        connect;
  };
  // How the schedule is notified; see AttachedSchedule. None may wait.
  struct Callbacks {
    using Sender = std::function<bool(const v1::AttachRequest&)>;
    // Returns whether there is anything to decide (not with enforcement=off).
    std::function<bool()> needed;
    std::function<void()> follow_none;
    std::function<void()> follow_coordinator;
    std::function<void(Sender, const schedule::Epoch&)> follow_fallback;
    std::function<void(const v1::AttachEvent&)> on_event;
    // Returns the newest plan that this rank knows.
    std::function<schedule::Plan()> plan;
  };

  FallbackClient(Options options, Callbacks callbacks);
  ~FallbackClient();

  // Returns where this rank's fallback coordinator listens, for its Hello;
  // empty if it has none.
  std::string address() const;

  // The Attach stream was lost after the coordinator had accepted it.
  void OnLost();
  // The coordinator has accepted the stream, for the first time or again. The
  // coordinator is followed when this returns, or as soon as the fallback
  // coordinator has released the rank.
  void OnAttached();
  // Sets the address that the coordinator has sent; empty: rank 0 has left.
  void NoteAddress(absl::string_view address);
  // Once rank 0 has left there is no fallback coordinator any more.
  void NoteRankLeft(int rank);
  // The generation has ended, or this rank is no member any more.
  void End();

 private:
  void Run();
  bool MayAttachLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns how long to wait before MayAttachLocked is checked again.
  absl::Duration PauseLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Serves one stream to the fallback coordinator, from its hello to its end.
  void AttachOnce();
  std::shared_ptr<AttachStream> OpenStream();
  // The callbacks of a stream; those of earlier streams are ignored.
  void OnStreamEvent(int64_t number, const v1::AttachEvent& event);
  void OnStreamEnd(int64_t number, const absl::Status& status);
  // Follows the fallback coordinator, unless the coordinator is back.
  void Follow(const std::shared_ptr<AttachStream>& stream);
  void AwaitStreamEnd();
  void NoteStreamLost();
  // Sends the release, and waits until it is confirmed.
  void RequestRelease(AttachStream* stream);
  void NoteReleased();

  const Options options_;
  const Callbacks callbacks_;
  std::shared_ptr<FallbackCoordinator> coordinator_;  // on rank 0
  std::unique_ptr<FallbackServer> server_;  // likewise, if there are others

  // Held while the leader is changed; before mutex_.
  Mutex switch_mutex_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time lost_since_ ABSL_GUARDED_BY(mutex_);
  // How often the coordinator has accepted this rank, and how often when the
  // fallback coordinator was followed last: a stream that was accepted and lost
  // again has ended the earlier state.
  int64_t attachments_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t followed_at_ ABSL_GUARDED_BY(mutex_) = 0;
  // The fallback coordinator may hold something that this rank has sent.
  bool bound_ ABSL_GUARDED_BY(mutex_) = false;
  // There is no fallback coordinator any more.
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  // Of the stream under way; no epoch: it is not accepted yet.
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<schedule::Epoch> epoch_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);

  // The thread's own.
  Backoff pauses_;
  std::shared_ptr<CoordinatorStub> stub_;
  std::string stub_address_;

  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_FALLBACK_FALLBACK_CLIENT_H_
