#ifndef COXSWAIN_CLIENT_COMM_TOPOLOGY_HOST_IDENTITY_H_
#define COXSWAIN_CLIENT_COMM_TOPOLOGY_HOST_IDENTITY_H_

#include <string>

namespace coxswain {

// Which host this process is on, for the question of who can share memory: the
// kernel's boot id, the network namespace, in which local sockets live, and the
// user, whose number means something in one user namespace only. Host names do
// not count. Where the system does not tell, an identity that no other process
// has.
std::string HostIdentity();

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TOPOLOGY_HOST_IDENTITY_H_
