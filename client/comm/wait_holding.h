#ifndef COXSWAIN_CLIENT_COMM_WAIT_HOLDING_H_
#define COXSWAIN_CLIENT_COMM_WAIT_HOLDING_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/comm/work.h"

namespace coxswain {

// Waits for an operation that uses `memory`, which lives until the operation
// has ended, even if the wait gives up.
inline absl::Status WaitHolding(const WorkPtr& work,
                                std::shared_ptr<const void> memory,
                                absl::Duration timeout) {
  work->OnDone([memory = std::move(memory)](const absl::Status&) {});
  return work->Wait(timeout);
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_WAIT_HOLDING_H_
