#ifndef COXSWAIN_TESTS_SUPPORT_PROCESS_STATUS_H_
#define COXSWAIN_TESTS_SUPPORT_PROCESS_STATUS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace coxswain {

// Returns a field of /proc/PID/status in KiB, such as VmRSS (memory now) or
// VmHWM (the most that there ever was); -1 if it is not known.
int64_t StatusKib(pid_t process, const std::string& field);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_PROCESS_STATUS_H_
