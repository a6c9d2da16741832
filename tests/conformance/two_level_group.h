#ifndef COXSWAIN_TESTS_CONFORMANCE_TWO_LEVEL_GROUP_H_
#define COXSWAIN_TESTS_CONFORMANCE_TWO_LEVEL_GROUP_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/communicator.h"
#include "client/comm/gloo/gloo_communicator.h"
#include "client/comm/hosts.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/two_level/two_level_communicator.h"

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

// Returns a rank of a test's group over several hosts, which are all this
// machine.
inline absl::StatusOr<std::unique_ptr<Communicator>> ConnectTwoLevel(
    const CommunicatorOptions& group) {
  const auto part = [&group](const std::string& id, int rank, size_t size) {
    CommunicatorOptions options = group;
    options.id = id;
    options.rank = rank;
    options.size = static_cast<int>(size);
    return options;
  };
  TwoLevelParts parts = {nullptr, nullptr, nullptr, TestHosts(group.size)};
  const int host = parts.hosts.host_of(group.rank);
  const int place = parts.hosts.local_rank(group.rank);
  COXSWAIN_ASSIGN_OR_RETURN(parts.local,
                            ConnectShm(part(absl::StrCat("host-", host), place,
                                            parts.hosts.ranks(host).size())));
  COXSWAIN_ASSIGN_OR_RETURN(
      parts.across,
      ConnectGloo(part(absl::StrCat("place-", place), host,
                       static_cast<size_t>(parts.hosts.count()))));
  COXSWAIN_ASSIGN_OR_RETURN(parts.flat, ConnectGloo(group));
  return MakeTwoLevel(std::move(parts), group.timeout);
}

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_TWO_LEVEL_GROUP_H_
