#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_SENDER_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_SENDER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/elastic/catch_up/frame.h"

namespace coxswain::catch_up {

// Bytes that several senders share.
struct Block {
  std::shared_ptr<const char[]> memory;
  const char* data = nullptr;  // within it
  int64_t bytes = 0;
};

struct Frame {
  Header header;
  Block payload;
};

// A member's connection to one newcomer, on a thread of its own: the thread
// that trains never waits for it. Once anything fails, or more is queued than
// may be, the newcomer gets nothing more; it gets nothing at all where no
// thread can be started.
//
// Threading: all methods but the destructor from any thread.
class Sender {
 public:
  struct Options {
    std::string address;  // host:port
    Hello hello;
    std::string host;  // of this member
    // Of all that is queued.
    int64_t max_queued_bytes = 0;
    absl::Duration connect_timeout = absl::Seconds(5);
    // How long the newcomer may take nothing that is there for it.
    absl::Duration send_timeout = absl::Seconds(30);
  };
  explicit Sender(Options options);
  // Drops what is queued.
  ~Sender();

  // Returns whether so much more may be queued; otherwise, and if Send finds
  // that it may not, the newcomer gets nothing more.
  bool Fits(int64_t bytes);
  // Queues the frames of one step.
  void Send(std::vector<Frame> frames, int64_t progress);

  // Gives the newcomer nothing more.
  void Drop(absl::string_view why);

  // Returns the pieces of the state that were asked for since the last call.
  std::vector<int64_t> TakeAsked();
  // Returns whether the newcomer is in step, and lacks nothing that it has
  // asked for, or gets nothing more.
  bool settled() const;
  // Returns whether it has been in step, whatever it lacks.
  bool in_step() const;
  bool failed() const;
  // Returns what the newcomer last reported of damaged pieces; empty: nothing.
  std::string damage() const;

 private:
  bool FitsLocked(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives the newcomer up: the thread ends, and drops what is queued.
  void FailLocked(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogDroppedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  absl::Status Serve();
  absl::Status Connect();
  // Moves what can be moved at once. Returns whether anything was.
  absl::StatusOr<bool> SendSomeQueued();
  absl::Status ReceiveAnswers();
  void NoteAnswer(const Header& header, absl::string_view text);

  const Options options_;
  WakeFd wake_;
  UniqueFd socket_;         // of the thread
  std::string front_;       // likewise: the header that is being sent
  Frame sending_;           // likewise
  int64_t sent_ = 0;        // of header and payload
  bool sent_last_ = false;  // likewise
  std::string answer_;      // likewise: what came of the next one

  mutable Mutex mutex_;
  std::deque<Frame> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of what was sent, and the newcomer has not reported to hold: the progress.
  std::deque<int64_t> unreached_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool in_step_ ABSL_GUARDED_BY(mutex_) = false;
  bool lacks_ ABSL_GUARDED_BY(mutex_) = false;  // what was damaged
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> asked_ ABSL_GUARDED_BY(mutex_);
  // Asked for together, but for the last of them: a step between two would use
  // the one that is still damaged.
  std::vector<int64_t> asking_ ABSL_GUARDED_BY(mutex_);
  std::string damage_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace coxswain::catch_up

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_SENDER_H_
