#ifndef COXSWAIN_TESTS_SUPPORT_LOOPBACK_H_
#define COXSWAIN_TESTS_SUPPORT_LOOPBACK_H_

#include "base/unique_fd.h"

namespace coxswain {

// Returns a socket that listens on a free port of 127.0.0.1. Once it is closed,
// another can listen there at once.
UniqueFd ListenOnLoopback(int* port);

// Returns a port of 127.0.0.1 on which nothing listens. Another process may
// take it at any time.
int UnusedPort();

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_LOOPBACK_H_
