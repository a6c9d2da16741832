#ifndef COXSWAIN_SERVER_STATE_STATE_WRITER_H_
#define COXSWAIN_SERVER_STATE_STATE_WRITER_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// A StateStore to which many may write at once without waiting for each
// commit: how a component keeps "commit, then answer" without a thread that
// waits. All changes, also those of Apply, are committed in the order of the
// calls.
//
// Other requests see what a component has changed in memory before it is
// durable. Code that answers from it therefore answers through AfterWritten, so
// that no answer has what a crash could still undo.
//
// Callbacks run once, one at a time and in the order of the calls, with no lock
// held: on a thread of the writer, or on the caller's, before the call returns.
// One that waits for a commit, as in Apply, holds up those after it: only for a
// small one that is rare, as the last of a generation. Thread-safe.
class StateWriter : public StateStore {
 public:
  using Done = std::function<void(const absl::Status&)>;

  // Commits the batch, then calls back with the outcome. An error means that
  // nothing of this batch was changed; it does not touch later batches. An
  // empty batch is committed at once, after those before it.
  virtual void Write(StateBatch batch, Done done) = 0;

  // Calls back once all earlier writes have been committed, or have failed.
  virtual void AfterWritten(std::function<void()> done) = 0;
};

// Returns the answer to a change that could not be committed: `what` is what
// was not done. ABORTED, by which a store reports that another coordinator owns
// it, becomes UNAVAILABLE: to a client it would mean that its generation is
// over, while it only has to ask the other coordinator.
inline absl::Status NotWritten(absl::string_view what,
                               const absl::Status& status) {
  const absl::StatusCode code =
      absl::IsAborted(status) ? absl::StatusCode::kUnavailable : status.code();
  return absl::Status(code, absl::StrCat(what, ": ", status.message()));
}

// Returns once the callbacks of all that was written before have run: for the
// destructor of a component whose callbacks refer to it. Not to be called from
// a callback, nor under a lock that one takes.
inline void WaitUntilWritten(StateWriter* writer) {
  struct Signal {
    Mutex mutex;
    CondVar changed;
    bool written ABSL_GUARDED_BY(mutex) = false;
  };
  const auto signal = std::make_shared<Signal>();
  writer->AfterWritten([signal] {
    {
      MutexLock lock(&signal->mutex);
      signal->written = true;
    }
    signal->changed.NotifyOne();
  });
  MutexLock lock(&signal->mutex);
  // The writer always calls back.
  signal->changed.WaitForWork(
      &signal->mutex,
      [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return signal->written; });
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_STATE_WRITER_H_
