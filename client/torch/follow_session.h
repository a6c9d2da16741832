#ifndef COXSWAIN_CLIENT_TORCH_FOLLOW_SESSION_H_
#define COXSWAIN_CLIENT_TORCH_FOLLOW_SESSION_H_

#include "absl/status/status.h"
#include "client/session/session.h"
#include "client/torch/distributed_data_parallel_options.h"

namespace coxswain::torch {

// Lets a DistributedDataParallel follow the job's plan (options->plan, of which
// its hook is to be made, and what an operator has changed of it), have its
// steps decided by the coordinator, and count as progress there. The session
// outlives it. One wrapper at a time for each session: a second one on the same
// stream would mix its rounds with the first's. Set make_hook as well for plans
// that change the hook, and trace_file from SessionOptions. Errors of
// ScheduleClient::Gate.
absl::Status FollowSession(Session& session,
                           DistributedDataParallelOptions* options);

}  // namespace coxswain::torch

#endif  // COXSWAIN_CLIENT_TORCH_FOLLOW_SESSION_H_
