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
  CancelSignal* cancel = nullptr;  // raised: ends with its status
};

// One ncclComm_t from its creation to its end, neither of which blocks a thread
// longer than its timeout. Each call is completed, as NCCL's non-blocking
// communicators require, before the next one begins.
//
// Thread-safe: calls wait for each other; Abort waits a little, and then
// proceeds.
class NcclLink {
 public:
  // Connects with one id, or with several where NCCL takes them. `where` begins
  // the messages of errors: those of nccl_status.h, DEADLINE_EXCEEDED, and the
  // signal's status.
  static absl::StatusOr<std::shared_ptr<NcclLink>> Connect(
      absl::string_view where, NcclApi* api, const NcclRank& rank,
      const std::vector<NcclUniqueId>& ids, const NcclTimeout& timeout);

  NcclLink(NcclApi* api, NcclComm comm) : api_(api), comm_(comm) {}
  // Aborts, if neither that nor Finish was called.
  ~NcclLink() { Abort(); }

  // Runs `call` and waits until NCCL has completed it. Fails with ABORTED once
  // Abort or Finish was called.
  absl::Status Run(absl::string_view where,
                   const std::function<NcclResult(NcclComm)>& call,
                   const NcclTimeout& timeout);
  // Returns the error that NCCL has found by itself; OK during a call.
  absl::Status AsyncError(absl::string_view where);

  // Ends kernels that wait for peers, and frees the communicator. `release`
  // destroys recorded graphs: NCCL waits for that, and they may wait for the
  // kernels, so it is called once the abort has begun. Takes some 6 seconds at
  // worst, and `release`: what NCCL has not ended by then continues in the
  // background, which is logged once.
  void Abort(const std::function<void()>& release = nullptr);
  // Waits a while for what is in flight, then aborts. Once.
  void Finish();

 private:
  absl::Status Settle(absl::string_view where, NcclComm comm,
                      const NcclTimeout& timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the communicator, which belongs to this thread alone from now on;
  // null if it was taken before.
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
