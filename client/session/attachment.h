#ifndef COXSWAIN_CLIENT_SESSION_ATTACHMENT_H_
#define COXSWAIN_CLIENT_SESSION_ATTACHMENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/backoff.h"
#include "base/mutex.h"
#include "client/rpc/coordinator_stub.h"
#include "client/rpc/member_context.h"

namespace coxswain {

// Keeps a member's Attach stream open: sends heartbeats, opens the stream again
// when the connection breaks, and notices when the generation has ended. A part
// of Session. A thread of its own does the work, so that an abort takes effect
// at once and never on a thread of gRPC.
//
//   opening --Attached--> attached --connection lost--> opening ...
//      |                     |
//      +--grace has passed, Abort, stale fence, stream refused--> ended
//
// The coordinator waits for the members of a generation that it has ended until
// they join the next one, and learns of none whether it lives. Where it asks
// for that, one that has yet to join goes on asking to be attached, and is
// refused: its program has yet to notice the end, or its Join is on its way. It
// stops once the coordinator runs a later generation, and after a time limit.
//
// A coordinator that is restarted, or another one that takes over, accepts the
// stream in a later term: this raises the term of the member's context, and
// wakes the calls that wait for it.
class Attachment {
 public:
  struct Options {
    absl::Duration heartbeat_interval = absl::Seconds(1);
    // How often one that has yet to join the next generation asks to be
    // attached.
    absl::Duration sign_interval = absl::Seconds(1);
    // How long the stream may be lost before the generation counts as ended.
    absl::Duration grace = absl::Seconds(30);
    // How long an Abort, which names the cause, may come after another answer
    // has shown that the fence is stale.
    absl::Duration abort_margin = absl::Seconds(1);
    // A stream that was lost is opened again after a pause that varies by so
    // much among the workers, which all lose it at the same moment.
    absl::Duration spread;
    // The limit of these pauses, but for that.
    absl::Duration max_pause = absl::Seconds(2);
    // How long a member shows at most that it lives once it has left for the
    // next generation, or once this one has ended. As long as the coordinator
    // waits for survivors by default.
    absl::Duration show_life_for = absl::Minutes(10);
    // Where this worker's fallback coordinator listens; see
    // v1.Hello.fallback_address.
    std::string fallback_address;
  };

  // All are called without a lock.
  struct Callbacks {
    // Returns the content of the next heartbeat. On the attachment's thread.
    std::function<v1::Heartbeat()> progress;
    // Called once with the reason when the generation has ended, unless Stop or
    // Leaving came first. On the attachment's thread.
    std::function<void(const absl::Status&)> on_end;
    // The coordinator of this term has accepted the stream, for the first time
    // or again. On a thread of the stub, which it must not block.
    std::function<void(int64_t term, bool again)> on_attached = [](int64_t,
                                                                   bool) {};
    // The stream was lost after the coordinator had accepted it. On the
    // attachment's thread.
    std::function<void(const absl::Status&)> on_lost = [](const absl::Status&) {
    };
    // The stream was accepted again: what could not be sent meanwhile can be
    // sent now. On the attachment's thread.
    std::function<void()> on_reattached = []() {};
    // Returns whether the coordinator loses survivors that are silent. On the
    // attachment's thread.
    std::function<bool()> silence_counts = []() { return false; };
    // All other events of the coordinator; as on_attached.
    std::function<void(const v1::AttachEvent&)> on_event =
        [](const v1::AttachEvent&) {};
  };

  Attachment(std::shared_ptr<MemberContext> member, const Options& options,
             Callbacks callbacks);
  ~Attachment() { Stop(); }

  // Waits until the coordinator has accepted the stream. Fails with the reason
  // if the generation ended before, with DEADLINE_EXCEEDED after `timeout`, and
  // as StartThread.
  absl::Status WaitUntilAttached(absl::Duration timeout);

  // Hands a request to the stream. Returns false if it was not taken: no stream
  // is accepted, or too many requests wait. Never waits for an event; not
  // called from a callback.
  bool Send(const v1::AttachRequest& request);

  // Reports that another answer has shown that the fence is stale.
  void NoteStale(const absl::Status& status);

  // Makes the end of the stream expected from now on; it is not reported. Until
  // Left or Stop the stream stays open, so that the coordinator receives the
  // Leave before the stream ends; a connection that is lost is opened again,
  // because the Leave needs the current coordinator's term. `rejoins`: this
  // member is on its way to the next generation, and shows that it lives once
  // the stream has ended. Otherwise it shows so no longer.
  void Leaving(bool rejoins = false);
  // Closes the stream of a member that has left, without waiting.
  void Left();

  // Closes the stream and waits for the thread. Not called from `on_end`.
  void Stop();

 private:
  void Run();
  // Opens a stream and serves it to its end, whose status it returns; nullopt
  // when no other stream is needed.
  std::optional<absl::Status> ServeOneStream();
  std::unique_ptr<AttachStream> OpenStream();
  std::optional<absl::Status> ServeStream(AttachStream& stream);
  void OnEvent(const v1::AttachEvent& event);
  void OnAttached(int64_t term);
  // Notes how a stream has ended; returns whether to open another one.
  bool OnStreamEnd(const absl::Status& end, Backoff* pauses);
  // Returns whether the stream has been lost for longer than the grace.
  bool GraceOverLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool FinishedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || left_ || !end_.ok();
  }
  // Returns whether the coordinator is not to wait for this process.
  bool SilentLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (leaving_ && !rejoins_);
  }
  void EndLocked(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Shows that this process lives for as long as the coordinator waits for it.
  void ShowLife();
  // Asks once to be attached. Returns whether to ask again: it was refused, and
  // the coordinator runs no later generation.
  bool AskToAttach();
  // Returns whether there is time left to ask, until `deadline`. Logs what to
  // do about a program that has not noticed the end by then.
  bool MayAsk(absl::Time deadline);
  // Waits for it, or for the time of a sign of life and so much more. Returns
  // false if this process is no longer waited for.
  bool PauseUnless(const std::function<bool()>& condition,
                   absl::Duration more = absl::ZeroDuration());

  const std::shared_ptr<MemberContext> member_;
  const Options options_;
  const Callbacks callbacks_;

  // For Send; no callback takes it.
  Mutex stream_mutex_;
  AttachStream* stream_ ABSL_GUARDED_BY(stream_mutex_) = nullptr;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool rejoins_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;
  bool ever_attached_ ABSL_GUARDED_BY(mutex_) = false;
  bool reattached_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time lost_since_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> stream_end_ ABSL_GUARDED_BY(mutex_);
  absl::Status stale_ ABSL_GUARDED_BY(mutex_);
  absl::Status end_ ABSL_GUARDED_BY(mutex_);  // why the generation is over
  bool ended_there_ ABSL_GUARDED_BY(mutex_) = false;  // by the coordinator

  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_SESSION_ATTACHMENT_H_
