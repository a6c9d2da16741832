#include "tests/bench/scale/process_usage.h"

#include <cerrno>
#include <ctime>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coxswain::bench {

absl::StatusOr<ProcessUsage> UsageOf(pid_t process) {
  ProcessUsage usage;
  clockid_t clock;
  timespec time;
  if (clock_getcpuclockid(process, &clock) != 0 ||
      clock_gettime(clock, &time) != 0) {
    return absl::ErrnoToStatus(errno, "the processor time of the coordinator");
  }
  usage.cpu = absl::DurationFromTimespec(time);
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  std::string word;
  while (status >> word) {
    if (word == "VmRSS:" && status >> usage.resident_kib) return usage;
  }
  return absl::UnavailableError(
      absl::StrCat("process ", process, " has no resident memory"));
}

}  // namespace coxswain::bench
