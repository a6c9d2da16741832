#ifndef COXSWAIN_CAPI_EXCHANGE_H_
#define COXSWAIN_CAPI_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "client/group/process_group.h"
#include "client/reduce/bucket.h"
#include "client/reduce/bucket_stream.h"
#include "client/reduce/hook.h"
#include "client/reduce/hook_state.h"
#include "client/session/session.h"
#include "schedule/plan.h"
#include "schedule/ticket.h"

namespace coxswain::capi {

// What exchanges the gradients of one stream: the hook, the ranks, and how they
// are connected. Threading: that of BucketStream.
class StreamExchange {
 public:
  // `parameters` is their hash, which ranks have in common.
  StreamExchange(std::shared_ptr<ProcessGroup> group, uint64_t parameters,
                 std::unique_ptr<BucketStream> stream)
      : group_(std::move(group)),
        parameters_(parameters),
        stream_(std::move(stream)) {}

  BucketStream& stream() { return *stream_; }
  Communicator& communicator() const { return group_->communicator(); }

  // Notes what was decided about a step. It counts in the hook from Settle on,
  // as a program may lose the step before it has taken it: see Release.
  absl::Status NoteDecision(bool commit);
  // Ends the step that was decided last. Comes before whatever uses the hook.
  absl::Status Settle();

  // Between steps: the hook, with all steps that were decided.
  absl::StatusOr<Hook*> SettledHook();

  // Returns a hook's own state at the end of a generation, however that has
  // ended; `undo_last`: without the step that was decided last. The stream is
  // broken after it.
  absl::StatusOr<HookState> Release(bool undo_last, absl::Duration limit);

  absl::Status ChangeParameters(uint64_t hash,
                                std::vector<ParameterSpec> parameters);

  // Fills in what a ticket has of the exchanges before, and follows the plan
  // that it was made for.
  absl::Status Begin(const schedule::Plan& plan, schedule::Ticket* ticket);

  // Keeps what cx_hook_save returns, until the next one or Begin. Returns it.
  const std::string& KeepState(std::string state) {
    saved_ = std::move(state);
    return saved_;
  }

 private:
  // Destroyed last.
  const std::shared_ptr<ProcessGroup> group_;
  uint64_t parameters_;
  const std::unique_ptr<BucketStream> stream_;
  std::optional<bool> decided_;  // whether to commit; unset: nothing to end
  std::string saved_;
};

class OpenSession;

// Returns what exchanges the gradients of a stream. Fails with
// FAILED_PRECONDITION if nothing does.
absl::StatusOr<std::shared_ptr<StreamExchange>> FindExchange(
    const OpenSession& open, const char* stream);

// Returns the coordinator's reason for an error of a collective, which names
// the rank that was lost.
absl::Status Explained(Session& session, const absl::Status& status);

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_EXCHANGE_H_
