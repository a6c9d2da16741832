#ifndef COXSWAIN_SERVER_COMPONENTS_COMPONENTS_H_
#define COXSWAIN_SERVER_COMPONENTS_COMPONENTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/group/groups.h"
#include "server/journal/journal.h"
#include "server/membership/membership.h"
#include "server/parameter/parameter_store.h"
#include "server/plan/plan_store.h"
#include "server/schedule/schedule_registry.h"
#include "server/state/owned_state.h"
#include "server/state/quarantine.h"
#include "server/store/key_value_store.h"
#include "server/telemetry/rpc_metrics.h"
#include "server/telemetry/telemetry.h"

namespace coxswain::server {

// Owns a component, or is null. Where the owner is const, so is the component.
template <typename T>
class Owned {
 public:
  Owned() = default;
  Owned& operator=(std::unique_ptr<T> component) {
    component_ = std::move(component);
    return *this;
  }

  T* get() { return component_.get(); }
  const T* get() const { return component_.get(); }
  T* operator->() { return get(); }
  const T* operator->() const { return get(); }
  const T& operator*() const { return *component_; }

  bool operator!=(std::nullptr_t) const { return component_ != nullptr; }

 private:
  std::unique_ptr<T> component_;
};

// The components of a coordinator, which owns them: the services call them, the
// status page and the metrics read them. In order of construction: what is
// below uses what is above.
struct Components {
  const Clock* clock = nullptr;
  std::shared_ptr<OwnedState> state;
  Owned<Journal> journal;
  Owned<PlanStore> plans;
  Owned<CheckpointStore> checkpoints;
  Owned<Membership> membership;
  Owned<ScheduleRegistry> schedule;
  Owned<KeyValueStore> store;
  Owned<Groups> groups;
  Owned<ParameterStore> parameters;
  Owned<Telemetry> telemetry;
  Owned<RpcMetrics> rpc;  // null: calls are not counted

  // The records of the state that could not be read at the start.
  std::vector<QuarantinedRecord> quarantined;
  absl::Time started;  // by the clock
  std::atomic<int64_t> last_tick_ns{0};

  // Returns whether the state is still held.
  bool leads() const { return !state->can_be_lost() || state->Held(); }
  // Returns when deadlines were checked last, by the clock.
  absl::Time last_tick() const { return absl::FromUnixNanos(last_tick_ns); }
};

// For the status page and the metrics, which change nothing.
using CoordinatorView = const Components;

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_COMPONENTS_COMPONENTS_H_
