#ifndef COXSWAIN_CLIENT_COMM_TWO_LEVEL_LEVELS_H_
#define COXSWAIN_CLIENT_COMM_TWO_LEVEL_LEVELS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "client/comm/communicator.h"
#include "client/comm/hosts.h"

namespace coxswain {

// What a rank moves data by within its host and between hosts.
struct Levels {
  Communicator* local = nullptr;
  std::vector<Communicator*> bridges;  // null where this rank is not in one
  Communicator* flat = nullptr;
  Hosts hosts;
  // Waits for an operation of these until it no longer uses memory.
  std::function<absl::Status(const WorkPtr&)> wait;
  // Ends what they have in flight.
  std::function<void(const absl::Status&)> abort;

  int host() const { return hosts.host_of(flat->rank()); }
  int place() const { return local->rank(); }
  // Returns whether each host has a rank for each bridge, and no other.
  bool even() const {
    for (int host = 0; host < hosts.count(); ++host) {
      if (hosts.ranks(host).size() != bridges.size()) return false;
    }
    return true;
  }
};

// What is on its way at a time, of one rank's memory: large against what a
// message costs, small against what a bucket holds.
constexpr int64_t kPieceBytes = 4 << 20;

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TWO_LEVEL_LEVELS_H_
