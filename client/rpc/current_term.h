#ifndef COXSWAIN_CLIENT_RPC_CURRENT_TERM_H_
#define COXSWAIN_CLIENT_RPC_CURRENT_TERM_H_

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/mutex.h"

namespace coxswain {

// The term that a member's requests carry: of the coordinator that has
// accepted its stream last. Shared by the attachment, which learns it, and the
// calls that wait for it. Thread-safe.
class CurrentTerm {
 public:
  explicit CurrentTerm(int64_t term) : state_(std::make_shared<State>(term)) {}

  int64_t Get() const;
  // Terms only rise: a lower one is of a coordinator that has been replaced.
  void Raise(int64_t term);
  // No other term will come: nobody waits any longer.
  void Close();
  bool closed() const;
  // Waits for a higher term than `term`; whether there is one. False also once
  // `cancel` (may be null) is raised.
  bool WaitForNewer(int64_t term, absl::Duration timeout,
                    CancelSignal* cancel) const;

 private:
  struct State {
    explicit State(int64_t first) : term(first) {}
    Mutex mutex;
    CondVar changed;
    int64_t term ABSL_GUARDED_BY(mutex);
    bool closed ABSL_GUARDED_BY(mutex) = false;
  };
  // Shared with the callbacks of signals, which may outlive this.
  const std::shared_ptr<State> state_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_RPC_CURRENT_TERM_H_
