#ifndef COXSWAIN_SERVER_COORDINATOR_VIEW_H_
#define COXSWAIN_SERVER_COORDINATOR_VIEW_H_

#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/journal/journal.h"
#include "server/membership/membership.h"
#include "server/parameter/parameter_room.h"
#include "server/plan/plan_room.h"
#include "server/schedule/schedule_room.h"
#include "server/state/quarantine.h"
#include "server/telemetry/rpc_metrics.h"
#include "server/telemetry/telemetry.h"

namespace coxswain::server {

// The rooms of a coordinator for those who only look: the status page and the
// metrics. Made by the coordinator, which it must not outlive.
struct CoordinatorView {
  const Clock* clock = nullptr;
  const Membership* membership = nullptr;
  const PlanRoom* plans = nullptr;
  const ScheduleRoom* schedule = nullptr;
  const CheckpointStore* checkpoints = nullptr;
  const ParameterRoom* parameters = nullptr;
  const Telemetry* telemetry = nullptr;
  const RpcMetrics* rpc = nullptr;
  const Journal* journal = nullptr;  // null: no events are kept
  // What of the state could not be read, when it started. Null: nothing.
  const std::vector<QuarantinedRecord>* quarantined = nullptr;
  absl::Time started;           // by the clock
  std::function<bool()> leads;  // whether its state is still held
  // When its deadlines were looked at last.
  std::function<absl::Time()> last_tick;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_COORDINATOR_VIEW_H_
