#ifndef COXSWAIN_TESTS_CONFORMANCE_TWO_LEVEL_GROUP_H_
#define COXSWAIN_TESTS_CONFORMANCE_TWO_LEVEL_GROUP_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/comm/hosts.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/two_level/two_level_communicator.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {

// Returns two ranks on each host, or all on one where that does not come out
// even.
inline Hosts TestHosts(int size) {
  std::vector<int> host_of;
  for (int rank = 0; rank < size; ++rank) {
    host_of.push_back(size % 2 == 0 ? rank / 2 : 0);
  }
  return Hosts(host_of);
}

// Returns hosts with 1, 2, 3 and more ranks, or as many as there are; neither
// the hosts' ranks nor their numbers are in order.
inline Hosts UnevenTestHosts(int size) {
  std::vector<int> host_of;
  for (int host = 0, left = 0; static_cast<int>(host_of.size()) < size;) {
    if (left-- > 0) {
      host_of.push_back(host);
    } else {
      left = ++host;
    }
  }
  std::reverse(host_of.begin(), host_of.end());
  if (size > 2) std::swap(host_of[1], host_of[static_cast<size_t>(size) - 1]);
  return Hosts(host_of);
}

// Returns a rank of a test's group over these hosts, which are all this
// machine. Sets `flat` to what moves the data between them.
inline absl::StatusOr<std::unique_ptr<Communicator>> ConnectLevels(
    const CommunicatorOptions& group, const Hosts& hosts,
    Communicator** flat = nullptr) {
  const int host = hosts.host_of(group.rank);
  CommunicatorOptions options = group;
  options.id = absl::StrCat("host-", host);
  options.rank = hosts.local_rank(group.rank);
  options.size = static_cast<int>(hosts.ranks(host).size());
  TwoLevelParts parts = {nullptr, nullptr, {}, hosts};
  COXSWAIN_ASSIGN_OR_RETURN(parts.local, options.size == 1
                                             ? ConnectLoopback(options)
                                             : ConnectShm(options));
  COXSWAIN_ASSIGN_OR_RETURN(parts.flat, ConnectTcp(group));
  if (flat != nullptr) *flat = parts.flat.get();
  COXSWAIN_RETURN_IF_ERROR(SplitBridges(&parts));
  return MakeTwoLevel(std::move(parts), group.timeout);
}

// Returns a test's group over these hosts.
inline std::vector<std::unique_ptr<Communicator>> MakeLevels(
    int size, const Hosts& hosts, absl::Duration timeout) {
  return ConnectGroup(size, timeout, [&](const CommunicatorOptions& options) {
    return ConnectLevels(options, hosts);
  });
}

// Returns a rank of a test's group over TestHosts.
inline absl::StatusOr<std::unique_ptr<Communicator>> ConnectTwoLevel(
    const CommunicatorOptions& group) {
  return ConnectLevels(group, TestHosts(group.size));
}

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_TWO_LEVEL_GROUP_H_
