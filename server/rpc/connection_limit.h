#ifndef COXSWAIN_SERVER_RPC_CONNECTION_LIMIT_H_
#define COXSWAIN_SERVER_RPC_CONNECTION_LIMIT_H_

namespace coxswain::server {

// How many connections may be let in where `wanted` are allowed: each is a
// descriptor, and whoever connects must not take those that the coordinator's
// disk needs. A quarter of what the process may have, 2048 at most, is left.
int ConnectionLimit(int wanted);
// The same for a process that may have `descriptors`.
int ConnectionLimit(int wanted, unsigned long descriptors);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_RPC_CONNECTION_LIMIT_H_
