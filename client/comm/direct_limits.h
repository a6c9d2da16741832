#ifndef COXSWAIN_CLIENT_COMM_DIRECT_LIMITS_H_
#define COXSWAIN_CLIENT_COMM_DIRECT_LIMITS_H_

#include <cstdint>

namespace coxswain {

// Up to so many ranks exchange up to so many bytes each with each other one;
// more of them, or more, go round a ring. Two ranks are neighbours either way.
constexpr int kDirectRanks = 8;
constexpr int64_t kDirectBytes = 1 << 20;

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_DIRECT_LIMITS_H_
