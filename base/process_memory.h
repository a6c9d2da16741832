#ifndef COXSWAIN_BASE_PROCESS_MEMORY_H_
#define COXSWAIN_BASE_PROCESS_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// Returns how many bytes of memory this process may use at most: the machine's,
// or the limit that its control groups set for all of their processes, as in a
// container or under systemd's MemoryMax. Read anew at each call.
int64_t ProcessMemory();

// Returns the lower of `machine` and the limits in the control groups mounted
// at `root`, for a process whose /proc/self/cgroup is `groups` (cgroups(7)): in
// version 2 memory.max of the group and of those above it, in version 1
// memory.limit_in_bytes of what a container sees as the root.
int64_t ProcessMemory(int64_t machine, const std::string& root,
                      absl::string_view groups);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_PROCESS_MEMORY_H_
