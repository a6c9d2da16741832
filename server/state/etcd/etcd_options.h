#ifndef COXSWAIN_SERVER_STATE_ETCD_ETCD_OPTIONS_H_
#define COXSWAIN_SERVER_STATE_ETCD_ETCD_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "server/state/lease_clock.h"

namespace coxswain::server {

// Where a cluster of coordinators keeps its state in etcd, and how they agree
// on who of them leads.
struct EtcdOptions {
  std::vector<std::string> endpoints;  // HOST:PORT of one or more members
  // Of all keys; ends with a slash. Coordinators with one prefix are one
  // cluster.
  std::string prefix = "coxswain/";
  // Who this is, for people: what the others are told who leads.
  std::string name;
  // A leader that etcd has not heard of for this long leads no more. In whole
  // seconds; etcd has a least, of about 1.5 times its election timeout.
  absl::Duration lease = absl::Seconds(5);
  // Of one call; several fit into a lease.
  absl::Duration call_timeout = absl::Seconds(2);
  // How often one that stands by looks whether somebody leads.
  absl::Duration look_interval = absl::Milliseconds(200);
  const Clock* clock = LeaseClock();  // outlives the user
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_ETCD_ETCD_OPTIONS_H_
