#ifndef COXSWAIN_CLIENT_STAND_IN_STAND_IN_H_
#define COXSWAIN_CLIENT_STAND_IN_STAND_IN_H_

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
#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/tls_files.h"
#include "client/rpc/coordinator_stub.h"
#include "client/stand_in/stand_in_desk.h"
#include "client/stand_in/stand_in_server.h"
#include "schedule/plan.h"

namespace coxswain {

// Whom a rank follows: the coordinator, or, while that is away, the stand-in of
// its generation, or nobody; never two of them. A part of Session, which tells
// it what becomes of the Attach stream. On rank 0 it also is the stand-in.
//
//             lost                    accepted there
//   coordinator ------> nobody --------------------------> stand-in
//        ^                | ^                                  |
//        |                | +------- that stream ended --------+
//        |                |                                    |
//        +-- let go <-----+<-------- accepted again -----------+
//
// A rank that has been with the stand-in follows the coordinator again only
// once the stand-in has confirmed that nothing which this rank said there
// counts any more, or cannot decide ever again: else both could decide one
// round. Where the stand-in does not answer, the data connections to its rank
// do not work either.
//
// Threading: one thread of its own opens and ends visits; the methods are safe
// from any other, and do not wait for the network.
class StandIn {
 public:
  struct Options {
    bool on = true;
    int rank = 0;
    int world_size = 1;
    // Of the generation; the term may be any.
    v1::Fence fence;
    // Where rank 0 listens for the others.
    std::string host;
    // How the others come there.
    ClientSecurity security;
    // How long a lost stream may take to come back before anybody stands in.
    absl::Duration after = absl::Milliseconds(500);
    // How long the stand-in may take to answer before it is asked again.
    absl::Duration answer = absl::Seconds(2);
    const Clock* clock = Clock::Real();
    RandomSource* random = RandomSource::System();
    absl::Duration retry_base = absl::Milliseconds(100);
    absl::Duration retry_cap = absl::Seconds(2);
    // Connects to another rank's stand-in.
    std::function<std::shared_ptr<CoordinatorStub>(const std::string& address)>
        connect;
  };
  // What the schedule is told; see AttachedSchedule. None may wait.
  struct Callbacks {
    using Sender = std::function<bool(const v1::AttachRequest&)>;
    // Whether there is anything to decide (not with enforcement=off).
    std::function<bool()> needed;
    std::function<void()> follow_nobody;
    std::function<void()> follow_coordinator;
    std::function<void(Sender, int64_t spell)> follow_stand_in;
    std::function<void(const v1::AttachEvent&, int64_t spell)> on_event;
    // The newest plan that this rank knows.
    std::function<schedule::Plan()> plan;
  };

  StandIn(Options options, Callbacks callbacks);
  ~StandIn();

  // Where this rank stands in, for its Hello; empty: it does not.
  std::string address() const;

  // The Attach stream was lost, having been accepted.
  void OnLost();
  // It was accepted, for the first time or again. The coordinator is followed
  // when this returns, or as soon as the stand-in has let go.
  void OnAttached();
  // As the coordinator says; empty: rank 0 has left.
  void NoteAddress(absl::string_view address);
  // Rank 0 has left: nobody stands in any more.
  void NoteRankLeft(int rank);
  // The generation is over, or this rank is no member any more.
  void End();

 private:
  void Run();
  bool MayVisitLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Between two looks at whether it may be true.
  absl::Duration PauseLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One visit from its hello to its end.
  void VisitOnce();
  std::shared_ptr<AttachStream> OpenVisit();
  // Callbacks of a visit; of earlier ones they are ignored.
  void OnVisitEvent(int64_t number, const v1::AttachEvent& event);
  void OnVisitEnd(int64_t number, const absl::Status& status);
  // Follows the stand-in, unless the coordinator is back.
  void Settle(const std::shared_ptr<AttachStream>& stream);
  void AwaitEndOfVisit();
  void NoteVisitLost();
  // Asks to be let go, and waits for that.
  void AskToLetGo(AttachStream* stream);
  void NoteLetGo();

  const Options options_;
  const Callbacks callbacks_;
  std::shared_ptr<StandInDesk> desk_;      // on rank 0
  std::unique_ptr<StandInServer> server_;  // likewise, if there are others

  // Held while it is changed who is followed; before mutex_.
  Mutex switch_mutex_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool lost_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time lost_since_ ABSL_GUARDED_BY(mutex_);
  // The stand-in may hold something that this rank has said.
  bool bound_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // there is no stand-in any more
  std::string address_ ABSL_GUARDED_BY(mutex_);
  // Of the visit under way.
  int64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t spell_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not accepted yet
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);

  // The thread's own.
  Backoff backoff_;
  std::shared_ptr<CoordinatorStub> stub_;
  std::string stub_address_;

  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_STAND_IN_STAND_IN_H_
