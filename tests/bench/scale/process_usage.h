#ifndef COXSWAIN_TESTS_BENCH_SCALE_PROCESS_USAGE_H_
#define COXSWAIN_TESTS_BENCH_SCALE_PROCESS_USAGE_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace coxswain::bench {

// What another process has used so far, all its threads.
struct ProcessUsage {
  absl::Duration cpu;
  int64_t resident_kib = 0;
};

absl::StatusOr<ProcessUsage> UsageOf(pid_t process);

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCALE_PROCESS_USAGE_H_
