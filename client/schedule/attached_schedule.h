#ifndef COXSWAIN_CLIENT_SCHEDULE_ATTACHED_SCHEDULE_H_
#define COXSWAIN_CLIENT_SCHEDULE_ATTACHED_SCHEDULE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/wait_count.h"
#include "client/schedule/schedule_client.h"
#include "client/schedule/step_timings.h"
#include "proto/rendezvous.pb.h"
#include "schedule/epoch.h"
#include "schedule/plan.h"
#include "schedule/step_gate.h"

namespace coxswain {

// The schedule client of a session: a StepAgent for each stream, which sends
// over the session's Attach stream. A part of Session, which passes it the
// coordinator's events. Thread-safe.
//
// With enforcement=strict, and for votes, the thread that trains sends, because
// all ranks wait for the answer. With audit it has a backward pass to begin,
// and the exchange thread sends, in AwaitGrant: it is awake anyway, and waking
// another thread costs more than the ticket. A thread of this object repeats
// what is not answered.
class AttachedSchedule : public ScheduleClient {
 public:
  static constexpr int kMaxStreams = 64;
  static constexpr absl::Duration kPositionWait = absl::Seconds(1);

  struct Options {
    std::string job;  // for messages
    schedule::Plan plan;
    const Clock* clock = Clock::Real();
    absl::Duration resend = absl::Seconds(5);
    // How often a wait checks the clock: relevant only to a clock that is not
    // the machine's.
    absl::Duration look_again = absl::Seconds(1);
    // Returns what the session's communicators have done, for the timings of
    // steps; null: not known. Called without a lock.
    std::function<StepTimings::Traffic()> traffic;
    // Where the threads count that wait for a grant or a decision; null:
    // nowhere.
    std::shared_ptr<WaitCount> waits;
  };
  // Hands a request to the Attach stream, at once; returns false if it was not
  // taken. Called without a lock that an event may need.
  using Sender = std::function<bool(const v1::AttachRequest&)>;

  AttachedSchedule(Options options, Sender sender);
  // Called after the streams of requests and events have ended, when no gate is
  // in use.
  ~AttachedSchedule() override;

  absl::StatusOr<schedule::StepGate*> Gate(absl::string_view stream) override;
  void RequestStop(absl::string_view reason) override;
  void RequestDrain(absl::string_view reason) override;
  void RequestCheckpoint(absl::string_view reason) override;
  schedule::Plan plan() const override;
  void NoteMicroBatch() override { ++micro_batches_; }

  // Set the leader that this rank sends to and receives from: the coordinator,
  // at first. A new leader is sent this rank's positions first, then what was
  // not answered. None of these waits for the network; once they return,
  // nothing more is sent to, or accepted from, the leader before.
  void FollowNone();
  void FollowCoordinator();
  // Follows the fallback coordinator of the generation, in this epoch.
  void FollowFallback(Sender sender, const schedule::Epoch& epoch);
  // Waits until this rank's positions have been handed over for sending, so
  // that later requests of the session follow them; at most kPositionWait.
  void AwaitPositionsSent();
  // Handles an event of the coordinator, or of the fallback coordinator, and
  // does not block. Ignores events that are not the schedule's. Returns false
  // for a grant or a decision that does not count: its sender is not followed,
  // or the decision was made in an earlier epoch than this rank knows.
  bool OnEvent(const v1::AttachEvent& event);
  bool OnFallbackEvent(const v1::AttachEvent& event);
  // Adds the last decisions that this rank has received, and the highest
  // fallback epoch that it knows.
  void AddFinalState(v1::LeaveRequest* leave) const;
  // Ends all waits with `why`: the generation has ended.
  void End(const absl::Status& why);

  // Adds the positions of the streams, and how the last steps of the stream
  // "train" were spent, which is reported once.
  void AddProgress(v1::Heartbeat* heartbeat) const;

 private:
  class Stream;

  void Run();
  enum class Leader { kNone, kCoordinator, kFallback };
  void FollowLocked(Leader leader) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Handles an event of this leader, which is of this term; 0: the fallback
  // coordinator.
  bool HandleLocked(Leader from, int64_t term, const v1::AttachEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends what is due, in order. Any number of threads may call it.
  void SendDue();
  std::vector<v1::AttachRequest> TakeDueLocked()
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time DueLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits until `condition` is true of a stream's agent.
  absl::Status WaitLocked(Stream& stream, absl::string_view what,
                          const std::function<bool()>& condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void NotePlanLocked(const schedule::Plan& plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnAttachedLocked(const v1::Attached& attached)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Notes that this rank knows the epoch. In a new one no leader has waited for
  // the ranks yet.
  void RaiseEpochLocked(const schedule::Epoch& epoch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnDecisionLocked(const v1::Decision& wire, Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns OK, or why the stream's rounds have ended.
  absl::Status StateLocked(const Stream& stream) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status Announce(Stream& stream, const schedule::Ticket& ticket);
  // Begins the round, and returns how its ticket is sent.
  absl::StatusOr<schedule::Enforcement> BeginRoundLocked(
      Stream& stream, const schedule::Ticket& ticket)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AwaitGrant(Stream& stream);
  absl::StatusOr<schedule::Decision> Decide(Stream& stream,
                                            const schedule::Vote& vote);
  void Abort(Stream& stream, const absl::Status& reason);
  absl::Duration StepTimeout(const Stream& stream) const;
  // Of the stream "train": keeps the step that has ended for the heartbeat.
  void EndStep();
  StepTimings::Traffic TrafficNow() const;
  absl::Time Now() const { return options_.clock->Now(); }

  const Options options_;
  const Sender sender_;
  std::atomic<int64_t> micro_batches_{0};
  std::atomic<int64_t> rounds_{0};
  std::atomic<int64_t> gradient_bytes_{0};  // that were averaged
  std::atomic<int64_t> steps_{0};           // of the stream "train"
  std::atomic<int> bucket_{-1};
  mutable StepTimings timings_;

  // Keeps what is sent in order; taken before mutex_.
  Mutex send_mutex_;
  mutable Mutex mutex_;
  CondVar work_;  // for the thread
  CondVar sent_;  // the positions
  std::map<std::string, std::unique_ptr<Stream>> streams_
      ABSL_GUARDED_BY(mutex_);
  // The plans that streams may come to follow, by version: the last ones.
  std::map<int64_t, schedule::Plan> plans_ ABSL_GUARDED_BY(mutex_);
  std::string stop_ ABSL_GUARDED_BY(mutex_);
  std::string drain_ ABSL_GUARDED_BY(mutex_);
  // For a stream "train" to come.
  std::string checkpoint_ ABSL_GUARDED_BY(mutex_);
  // Of the coordinator that has accepted the stream; 0: not known.
  int64_t coordinator_term_ ABSL_GUARDED_BY(mutex_) = 0;
  Leader leader_ ABSL_GUARDED_BY(mutex_) = Leader::kCoordinator;
  Sender fallback_ ABSL_GUARDED_BY(mutex_);
  // The highest that this rank knows.
  schedule::Epoch epoch_ ABSL_GUARDED_BY(mutex_);
  // How often the positions were to be sent, and have been.
  int64_t attached_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t positions_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t positions_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SCHEDULE_ATTACHED_SCHEDULE_H_
