#ifndef COXSWAIN_SERVER_GROUP_GROUP_WORK_H_
#define COXSWAIN_SERVER_GROUP_GROUP_WORK_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "server/state/state_store.h"

namespace coxswain::server {

// What a call of a part of GroupRoom leaves to do once the lock has been let
// go: callbacks to run, and changes to commit.
struct GroupWork {
  struct Commit {
    StateBatch batch;
    // Takes the outcome, under the room's lock.
    std::function<void(const absl::Status&, GroupWork*)> committed;
  };
  std::vector<std::function<void()>> calls;
  std::vector<Commit> commits;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_GROUP_GROUP_WORK_H_
