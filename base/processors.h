#ifndef COXSWAIN_BASE_PROCESSORS_H_
#define COXSWAIN_BASE_PROCESSORS_H_

#include <sched.h>

#include <bitset>

namespace coxswain {

// Processors of a machine, a bit for each.
using Processors = std::bitset<CPU_SETSIZE>;

// Returns those that this thread may run on; none where the system does not
// name them.
Processors ProcessorsOfThread();

// Returns how many this process and its siblings may run on, as far as one of
// them can see: those of its parent, and its own. A launcher that keeps each of
// its processes on a few processors may run on all of them itself, and no
// process may run on those that its container is kept from.
int ProcessorsOfSiblings();

}  // namespace coxswain

#endif  // COXSWAIN_BASE_PROCESSORS_H_
