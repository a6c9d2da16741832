#ifndef COXSWAIN_BASE_PROCESS_MEMORY_H_
#define COXSWAIN_BASE_PROCESS_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// Bytes of memory that this process may use at most: the machine's, or what its
// control groups have for all of their processes, as in a container or under
// systemd's MemoryMax. Read anew at each call; for who sets limits at start.
int64_t ProcessMemory();

// The least of what a machine with so much has, and of what is written in the
// control groups mounted at `root`, where /proc/self/cgroup says `groups`
// (cgroups(7)): memory.max of the group and of those above it, in version 2,
// and in version 1 memory.limit_in_bytes of what a container sees as the root.
int64_t ProcessMemory(int64_t machine, const std::string& root,
                      absl::string_view groups);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_PROCESS_MEMORY_H_
