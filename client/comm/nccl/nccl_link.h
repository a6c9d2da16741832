#ifndef COXSWAIN_CLIENT_COMM_NCCL_NCCL_LINK_H_
#define COXSWAIN_CLIENT_COMM_NCCL_NCCL_LINK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/comm/nccl/nccl_api.h"

namespace coxswain {

// How long to wait for NCCL.
struct NcclTimeout {
  absl::Time end;  // by `clock`
  Clock* clock = nullptr;
  CancelSignal* cancel = nullptr;  // raised: gives up with its status
};

// One ncclComm_t from its making to its end, neither of which can keep a thread
// longer than its timeout. Each call is brought to its end, as NCCL's
// non-blocking communicators ask for, before the next one begins.
//
// Thread-safe: calls wait for each other; Abort waits a little, and then goes
// ahead.
class NcclLink {
 public:
  // With one id, or with several where NCCL takes them. `where` begins the
  // messages of errors: those of nccl_status.h, DEADLINE_EXCEEDED, and the
  // signal's status.
  static absl::StatusOr<std::shared_ptr<NcclLink>> Connect(
      absl::string_view where, NcclApi* api, const NcclRank& rank,
      const std::vector<NcclUniqueId>& ids, const NcclTimeout& timeout);

  NcclLink(NcclApi* api, NcclComm comm) : api_(api), comm_(comm) {}
  // Aborts, if neither that nor Finish was called.
  ~NcclLink() { Abort(); }

  // Runs `call` and waits until NCCL is through with it. ABORTED once Abort or
  // Finish was called.
  absl::Status Run(absl::string_view where,
                   const std::function<NcclResult(NcclComm)>& call,
                   const NcclTimeout& timeout);
  // What NCCL has found to be wrong by itself; OK while a call is under way.
  absl::Status AsyncError(absl::string_view where);

  // Ends kernels that wait for peers, and frees the communicator. `release`
  // lets go of recorded graphs: NCCL waits for that, and they may wait for the
  // kernels, so it runs once the abort is under way. Takes some 6 seconds at
  // worst, and `release`: what NCCL has not ended by then goes on by itself,
  // which is logged once.
  void Abort(const std::function<void()>& release = nullptr);
  // Lets what is in flight end first, for a while; then aborts. Once.
  void Finish();

 private:
  absl::Status Settle(absl::string_view where, NcclComm comm,
                      const NcclTimeout& timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the communicator, which is this thread's alone from now on; null if
  // it has gone already.
  NcclComm Take();

  NcclApi* const api_;
  Mutex mutex_;
  CondVar changed_;
  NcclComm comm_ ABSL_GUARDED_BY(mutex_);
  bool in_call_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_NCCL_NCCL_LINK_H_
