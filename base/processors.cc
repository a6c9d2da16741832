#include "base/processors.h"

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>

namespace coxswain {
namespace {

// 0: of this thread.
Processors ProcessorsOf(pid_t process) {
  Processors processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(process, sizeof(set), &set) != 0) return processors;
  for (size_t i = 0; i < processors.size(); ++i) {
    if (CPU_ISSET(i, &set)) processors.set(i);
  }
  return processors;
}

}  // namespace

Processors ProcessorsOfThread() { return ProcessorsOf(0); }

int ProcessorsOfSiblings() {
  Processors all = ProcessorsOfThread();
  // 0 where the parent is outside the container; init knows of no siblings.
  const pid_t parent = getppid();
  if (parent > 1) all |= ProcessorsOf(parent);
  if (all.any()) return static_cast<int>(all.count());
  // There are more than the set has room for.
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace coxswain
