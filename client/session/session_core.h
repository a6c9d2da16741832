#ifndef COXSWAIN_CLIENT_SESSION_SESSION_CORE_H_
#define COXSWAIN_CLIENT_SESSION_SESSION_CORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"
#include "client/comm/measured_links.h"
#include "client/fallback/fallback_client.h"
#include "client/rpc/member_context.h"
#include "client/schedule/attached_schedule.h"
#include "client/session/attachment.h"
#include "client/session/event_queue.h"
#include "client/session/peer_reports.h"
#include "client/session/session.h"
#include "client/session/session_groups.h"
#include "client/session/wait_watch.h"
#include "schedule/plan.h"

namespace coxswain {

// What a session consists of, and how its generation ends. A part of Session.
class Session::Core {
 public:
  // The job, as each generation requests it: options and manifest are complete,
  // and overrides have been applied to the latter.
  struct Request {
    SessionOptions options;
    std::shared_ptr<const JobManifest> manifest;
    std::shared_ptr<CoordinatorStub> stub;
    // What is known of the links between hosts, from one generation to the
    // next.
    std::shared_ptr<MeasuredLinks> links = std::make_shared<MeasuredLinks>();
  };

  // Joins a round, and attaches. `cancel`, which may be null, ends the wait for
  // others. `entered` becomes the generation that this worker joined, also if
  // it ended before the worker has attached. The next one waits for a survivor
  // then: `unbegun` shows that it lives for as long as it is kept.
  static absl::StatusOr<std::unique_ptr<Session>> Join(
      Request asked, const std::shared_ptr<CancelSignal>& cancel,
      int64_t* entered, std::unique_ptr<Core>* unbegun);

  // `key` is the generation's; null: there is none.
  Core(Request request_in, const v1::JoinResponse& joined,
       const schedule::Plan& plan_in, Mesh mesh_in,
       std::shared_ptr<const DataKey> key);
  ~Core();

  // Opens the Attach stream and waits until the coordinator has accepted it.
  absl::Status Attach(const v1::JoinResponse& joined);

  // Declares the group of a request that is complete but for the fence.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Declare(
      v1::CreateGroupRequest request);
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Obtain(
      const v1::GroupInfo& info) {
    return groups_.Obtain(info);
  }
  absl::StatusOr<std::shared_ptr<ProcessGroup>> ObtainAlone() {
    return groups_.ObtainAlone();
  }

  using PlaceSource = std::function<std::optional<PipelinePlace>()>;

  struct Departure {
    std::string reason;
    bool failed = false;
    bool rejoin = false;
    absl::Duration timeout;

    static Departure Failed(std::string reason, absl::Duration timeout) {
      return {std::move(reason), true, false, timeout};
    }
  };
  absl::Status Leave(const Departure& departure);
  // Joins the generation after this one. As Session::Rejoin().
  absl::StatusOr<std::unique_ptr<Session>> Rejoin();

  void OnAbort(std::function<void(const absl::Status&)> callback);
  void ReportErrorNorm(double norm, int64_t step);
  void ReportNewcomers(std::vector<NewcomerReport> reports);
  void SetPipelinePlace(PlaceSource source);
  ScheduleClient& schedule() { return *schedule_; }
  PeerReports& peer_reports() { return *peer_reports_; }
  EventQueue& events() { return events_; }
  absl::Status status() const {
    MutexLock lock(&mutex_);
    return status_;
  }

  const Request request;
  const int rank;
  const int64_t generation;
  // The newest generation that this worker was a member of. For Rejoin alone.
  int64_t entered = 0;
  const schedule::Plan plan;
  const PreviousGeneration previous;
  const Mesh mesh;  // without a free axis
  const std::shared_ptr<MemberContext> member;
  SessionMembers members;
  StoreClient store;
  CheckpointClient checkpoints;
  std::atomic<int64_t> step{0};
  std::atomic<bool> waits_elsewhere{false};  // as ReportWait has it

 private:
  using AbortCallback = std::function<void(const absl::Status&)>;

  Attachment::Callbacks AttachmentCallbacks();
  void MakeFallbackClient();
  // Handles an event of the current leader, coordinator or fallback
  // coordinator.
  void OnCoordinatorEvent(const v1::AttachEvent& event);
  v1::Heartbeat Progress() const;
  // The next heartbeat: its progress, and for how long it has waited. On the
  // attachment's thread.
  v1::Heartbeat NextHeartbeat();
  // Converts the coordinator's events to events of the session.
  void NoteEvent(const v1::AttachEvent& event);
  void NoteDecision(const v1::Decision& decision);
  void Note(SessionEvent::Kind kind, std::string text, int rank = -1,
            int64_t term = 0);
  // Reports NCCL's state to the log and to the events, when a job on GPUs
  // stalls. Blocks kRasTimeout at most.
  void NoteNcclState();
  // The generation has ended other than by Leave. On the attachment's thread.
  void OnEnd(const absl::Status& why);
  // Ends waiting calls and, if requested, the communicators.
  void Close(const absl::Status& why, bool abort_communicators);
  // Begins what EndRejoin ends. Returns the signal that ends the wait for
  // others: this worker leaves for good, or its options have it given up.
  absl::StatusOr<std::shared_ptr<CancelSignal>> BeginRejoin();
  // Takes over what Join has returned, unless this worker has left for good
  // meanwhile: then it leaves the generation that it has entered, too.
  absl::StatusOr<std::unique_ptr<Session>> EndRejoin(
      absl::StatusOr<std::unique_ptr<Session>> joined,
      std::unique_ptr<Core> unbegun);
  // Has the Rejoin of another thread end. Waits for that, 2 s at most.
  void EndRejoining(const Departure& departure);
  // Returns whether this worker has left for good since BeginRejoin.
  bool leaves() const;
  // Leaves cleanly if that is needed before the next generation is joined.
  void LeaveForNext();
  // Shows the coordinator no longer that this worker lives: it does not join
  // the next generation, but may have yet to leave.
  void ShowLifeNoLonger();
  absl::Status LeaveRunning(const Departure& departure);
  void LeaveEnded(const Departure& departure);
  absl::Status SendLeave(const Departure& departure, absl::Duration timeout);

  EventQueue events_;
  std::shared_ptr<PeerReports> peer_reports_;
  SessionGroups groups_;
  mutable Mutex mutex_;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_for_good_ ABSL_GUARDED_BY(mutex_) = false;
  bool reported_ ABSL_GUARDED_BY(mutex_) = false;  // to on_abort_
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<AbortCallback> on_abort_ ABSL_GUARDED_BY(mutex_);
  double error_norm_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t error_step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<NewcomerReport> newcomers_ ABSL_GUARDED_BY(mutex_);
  PlaceSource pipeline_place_ ABSL_GUARDED_BY(mutex_);
  // A generation that ended before this worker has attached, and through which
  // it is on its way to the one after that: Leave is then from there.
  std::unique_ptr<Core> unbegun_ ABSL_GUARDED_BY(mutex_);
  // Of the Rejoin under way; null: there is none.
  std::shared_ptr<CancelSignal> rejoining_ ABSL_GUARDED_BY(mutex_);
  CondVar rejoined_;  // a Rejoin has ended that a Leave waited for
  // For what it may enter yet; no value: this worker has not left meanwhile.
  std::optional<Departure> farewell_ ABSL_GUARDED_BY(mutex_);
  // What the events have reported already: decisions may be repeated.
  int64_t noted_plan_ ABSL_GUARDED_BY(mutex_) = 0;
  bool noted_regroup_ ABSL_GUARDED_BY(mutex_) = false;

  absl::Duration heartbeat_interval_;  // set before there is a thread for them
  WaitWatch waits_;                    // of that thread
  // Its thread calls OnEnd and NextHeartbeat.
  std::shared_ptr<Attachment> attachment_;
  // Its thread sends through the attachment, so it goes first.
  std::unique_ptr<AttachedSchedule> schedule_;
  // Sets whom the schedule follows, so it is destroyed before that.
  std::unique_ptr<FallbackClient> fallback_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_SESSION_CORE_H_
