#ifndef COXSWAIN_TRANSPORT_CONNECTION_LIMIT_H_
#define COXSWAIN_TRANSPORT_CONNECTION_LIMIT_H_

namespace coxswain {

// How many connections may be accepted where `wanted` are allowed: each is a
// descriptor, and whoever connects must not take those that the process needs
// for its disk. A quarter of what the process may have, 2048 at most, is left.
int ConnectionLimit(int wanted);
// The same for a process that may have `descriptors`.
int ConnectionLimit(int wanted, unsigned long descriptors);

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_CONNECTION_LIMIT_H_
