#ifndef COXSWAIN_HOOKS_KERNELS_TARGETS_H_
#define COXSWAIN_HOOKS_KERNELS_TARGETS_H_

#include <string>
#include <vector>

namespace coxswain {

// Which instruction sets and how many threads the kernels use. Neither changes
// a bit of any result; both are for the whole process.

// Names of the instruction sets that were compiled and that this CPU has,
// best first ("AVX3", "AVX2", "SSE4", ...).
std::vector<std::string> KernelTargets();
// The one in use: the best, unless told otherwise.
std::string KernelTarget();
// For tests and benchmarks. False if this CPU has no such target. Not while a
// kernel runs.
bool UseKernelTarget(const std::string& name);

// Threads that one kernel call may use, its caller's included; 1 at first, or
// the number in the environment variable COXSWAIN_KERNEL_THREADS. Safe from
// any thread. Clamped to 1 to 256.
void SetKernelThreads(int threads);
int KernelThreads();

}  // namespace coxswain

#endif  // COXSWAIN_HOOKS_KERNELS_TARGETS_H_
