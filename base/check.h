#ifndef COXSWAIN_BASE_CHECK_H_
#define COXSWAIN_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

// Ends the process when one of Coxswain's own invariants is broken. Never for
// anything that a peer, a disk or a user can cause: those are absl::Status.
#define COXSWAIN_CHECK(condition)                                     \
  do {                                                                \
    if (!(condition)) {                                               \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, \
                   __LINE__, #condition);                             \
      std::abort();                                                   \
    }                                                                 \
  } while (false)

#endif  // COXSWAIN_BASE_CHECK_H_
