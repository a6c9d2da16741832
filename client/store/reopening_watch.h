#ifndef COXSWAIN_CLIENT_STORE_REOPENING_WATCH_H_
#define COXSWAIN_CLIENT_STORE_REOPENING_WATCH_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/rpc/membership.h"
#include "client/store/store_client.h"

namespace coxswain {

// A watch of a key that outlives a coordinator that is started again: its
// stream is opened again, and what has changed meanwhile is reported. Ends with
// the generation. The callbacks run on a thread of its own.
std::unique_ptr<StoreWatch> OpenReopeningWatch(
    std::shared_ptr<Membership> membership, std::string key,
    std::function<void(const StoreEvent&)> on_event,
    std::function<void(const absl::Status&)> on_end);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_STORE_REOPENING_WATCH_H_
