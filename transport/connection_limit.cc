#include "transport/connection_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace coxswain {
namespace {

// For shards that come and go, the state's files, and gRPC itself.
constexpr rlim_t kReserve = 2048;

}  // namespace

int ConnectionLimit(int wanted, unsigned long descriptors) {
  const rlim_t left = descriptors - std::min(kReserve, descriptors / 4);
  return static_cast<int>(std::min<rlim_t>(left, static_cast<rlim_t>(wanted)));
}

int ConnectionLimit(int wanted) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  return ConnectionLimit(wanted, limit.rlim_cur);
}

}  // namespace coxswain
