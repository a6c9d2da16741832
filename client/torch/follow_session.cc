#include "client/torch/follow_session.h"

#include "base/status_macros.h"
#include "client/schedule/schedule_client.h"

namespace coxswain::torch {

absl::Status FollowSession(Session& session,
                           DistributedDataParallelOptions* options) {
  COXSWAIN_ASSIGN_OR_RETURN(options->reducer.gate,
                            session.schedule().Gate(kTrainStream));
  options->plan = session.schedule().plan();
  options->changed_by_operator = session.ChangedByOperator(*options->plan);
  options->on_micro_batch = [&session] { session.schedule().NoteMicroBatch(); };
  return absl::OkStatus();
}

}  // namespace coxswain::torch
