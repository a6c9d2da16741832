#ifndef COXSWAIN_HOOKS_KERNELS_PARALLEL_H_
#define COXSWAIN_HOOKS_KERNELS_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace coxswain {

// Into how many parts to cut work that moves `bytes` bytes: at most
// KernelThreads() (targets.h), and 1 where a part would be over sooner than
// another thread is awake.
int KernelParts(int64_t bytes);

// Runs task(part) once for every part in [0, parts), each on one thread, and
// returns when all are done. The caller works too. The threads beside it
// belong to the process: they start when first needed, sleep between calls and
// end at exit. All parts run on the caller where they cannot help: one part,
// another kernel is using them, or this is the child of a fork. Thread-safe;
// `task` must not call RunParts.
void RunParts(int parts, const std::function<void(int)>& task);

// Runs range(begin, end) for contiguous ranges that cover [0, count) and, but
// for the last, end at multiples of `grain`.
void RunRanges(int64_t count, int64_t grain, int64_t bytes,
               const std::function<void(int64_t, int64_t)>& range);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_PARALLEL_H_
