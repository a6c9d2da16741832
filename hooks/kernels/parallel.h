#ifndef COXSWAIN_HOOKS_KERNELS_PARALLEL_H_
#define COXSWAIN_HOOKS_KERNELS_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Which instruction sets and how many threads the kernels use. Neither changes
// a bit of any result; both are for the whole process.

// Names of the instruction sets that were compiled and that this CPU has,
// best first ("AVX3", "AVX2", "SSE4", ...).
std::vector<std::string> KernelTargets();
// Returns the one in use: the best, unless another one was set.
std::string KernelTarget();
// For tests and benchmarks. False if this CPU has no such target. Not while a
// kernel runs.
bool UseKernelTarget(const std::string& name);

// Threads that one kernel call may use, its caller's included; 1 at first, or
// the number in the environment variable COXSWAIN_KERNEL_THREADS; with a
// warning, 1 if that is none. Safe from any thread. Clamped to 1 to 256.
void SetKernelThreads(int threads);
int KernelThreads();
// Returns the number that this value of the variable stands for, clamped.
// INVALID_ARGUMENT unless it is a whole number of at least 1.
absl::StatusOr<int> ParseKernelThreads(absl::string_view value);

// Into how many parts to cut work that moves `bytes` bytes: at most
// KernelThreads(), and 1 where a part would be over sooner than
// another thread is awake.
int KernelParts(int64_t bytes);

// Runs task(part) once for every part in [0, parts), each on one thread, and
// returns when all are done. The caller works too. The threads beside it
// belong to the process: they start when first needed, sleep between calls and
// end at exit. All parts run on the caller where they cannot help: one part,
// another kernel is using them, or this is the child of a fork. Thread-safe;
// `task` must not call RunParts.
void RunParts(int parts, const std::function<void(int)>& task);

// How many times RunParts had more than one part, since the process began: for
// tests, as each time costs what it takes to wake threads.
int64_t ParallelRegions();

// [0, count), of which all of it moves `bytes` bytes.
struct WorkRange {
  int64_t count = 0;
  int64_t bytes = 0;
};

// One RunParts for all of `work`: range(i, begin, end) for contiguous ranges
// that cover work[i] and, but for its last, end at multiples of `grain`.
// Threads take them in turn, a large one in several.
void RunRanges(const std::vector<WorkRange>& work, int64_t grain,
               const std::function<void(size_t, int64_t, int64_t)>& range);

// The same for one.
void RunRanges(int64_t count, int64_t grain, int64_t bytes,
               const std::function<void(int64_t, int64_t)>& range);

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_PARALLEL_H_
