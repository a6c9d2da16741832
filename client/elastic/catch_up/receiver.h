#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_RECEIVER_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_RECEIVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/elastic/catch_up/catch_up_target.h"
#include "client/elastic/catch_up/elements.h"
#include "client/elastic/catch_up/frame.h"
#include "client/session/session_options.h"

namespace coxswain::catch_up {

// A newcomer's end: listens while the worker waits, and takes the state of the
// members that connect.
//
// Threading: its own thread, and that of its owner.
class Receiver {
 public:
  struct Options {
    std::string address;  // of this machine, to listen at
    RandomSource* random = RandomSource::System();
    // For all members to connect, and for what they have begun to send.
    absl::Duration connect_timeout = absl::Seconds(10);
    absl::Duration receive_timeout = absl::Seconds(30);
    // Between two steps.
    absl::Duration step_timeout = absl::Minutes(10);
    // The longest that Finish waits.
    absl::Duration longest_finish = absl::Seconds(30);
    // So many pieces may arrive damaged.
    int max_damaged = 3;
  };
  // Fails as ListenTcp and StartThread do.
  static absl::StatusOr<std::unique_ptr<Receiver>> Listen(
      const Options& options, CatchUpTarget* target);
  // Listens where a worker that joins with these options has its data
  // connections. Fails as LocalAddressTowards, too.
  static absl::StatusOr<std::unique_ptr<Receiver>> ListenFor(
      const SessionOptions& session, CatchUpTarget* target);
  ~Receiver();

  const std::string& address() const { return address_; }  // host:port
  uint64_t secret() const { return secret_; }

  // Ends it: where the members have sent a state, waits for their last step, as
  // long as no `timeout` passes in which neither anything comes nor a step of
  // the target is under way, but at most for longest_finish. Returns nothing,
  // and the target is as it was, if that has not come, or not all before it.
  // Fails as CatchUpTarget::Undo does. Once.
  absl::StatusOr<std::optional<CaughtUp>> Finish(absl::Duration timeout);
  // Has Finish wait for nothing more. On any thread.
  void Cancel();

  // What was damaged, a sentence each. After Finish.
  const std::vector<std::string>& damage() const { return damage_; }

 private:
  // A member that sends.
  struct Member {
    UniqueFd socket;
    Hello hello;
    std::string host;
  };
  // A piece that arrived damaged.
  struct Damaged {
    size_t rank = 0;  // that sent it
    Header piece;
    std::vector<Elements> elements;  // that it holds
  };
  // Pieces of the state that one member was asked for.
  struct Request {
    size_t rank = 0;
    std::vector<Elements> elements;  // which are wrong until all have come
    std::vector<int64_t> pieces;     // together, in this order
    size_t arrived = 0;
    std::string reason;
  };

  Receiver(const Options& options, CatchUpTarget* target)
      : options_(options), target_(*target) {}

  void AwaitLastStep(absl::Duration timeout);
  void End();
  void Run();
  // Waits for members, and takes what they send until the last step.
  absl::StatusOr<CaughtUp> Serve();
  absl::Status AcceptMembers();
  absl::Status AcceptOne(absl::Time end);
  absl::StatusOr<CaughtUp> TakeSteps();
  absl::StatusOr<Header> TakeStepHeaders(bool first, std::string* rest);
  absl::Status TakeAverages(const Header& step, absl::string_view rest);
  absl::Status TakeState(bool first);
  // Returns the number of the next piece that a member is to send again.
  absl::StatusOr<int64_t> NextAsked(size_t rank);
  // Ends requests whose pieces have come.
  absl::Status EndRequests(const Parts& state);
  // Reports what has arrived damaged in this step, and asks for the state of
  // the elements.
  absl::Status AskForDamaged();
  // Has the target do something, however long that takes: Finish waits.
  absl::Status Work(const std::function<absl::Status()>& work);
  // Takes a piece, which may have arrived damaged.
  absl::StatusOr<bool> TakePiece(size_t rank, const Header& expected,
                                 const PiecesOf& to);
  absl::StatusOr<Header> TakeHeader(size_t rank, absl::Duration timeout);
  // Asks for the pieces of the state that hold these elements.
  absl::Status Ask(Request request, const Parts& state);
  absl::Status Answer(size_t rank, Header header, absl::string_view text);
  static absl::Status Unexpected(const Header& header);
  absl::Time In(absl::Duration time) const;

  const Options options_;
  CatchUpTarget& target_;
  UniqueFd listener_;
  std::string address_;
  uint64_t secret_ = 0;
  WakeFd wake_;

  // Of the thread.
  std::vector<Member> members_;   // by rank
  std::vector<Header> steps_;     // their last kStep
  std::vector<Damaged> damaged_;  // of this step
  std::deque<Request> requests_;  // in the order of asking
  std::vector<std::string> damage_;
  bool begun_ = false;  // the target has

  Mutex mutex_;
  CondVar changed_;
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time moved_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool working_ ABSL_GUARDED_BY(mutex_) = false;  // the target
  absl::StatusOr<std::optional<CaughtUp>> result_ ABSL_GUARDED_BY(mutex_) =
      std::optional<CaughtUp>();
  std::thread thread_;
};

}  // namespace coxswain::catch_up

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_RECEIVER_H_
