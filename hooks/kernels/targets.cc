#include "hooks/kernels/targets.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "hwy/highway.h"

namespace coxswain {
namespace {

int Clamped(int threads) { return std::clamp(threads, 1, 256); }

int ThreadsFromEnvironment() {
  const char* text = std::getenv("COXSWAIN_KERNEL_THREADS");
  return Clamped(text == nullptr ? 1 : std::atoi(text));
}

std::atomic<int>& Threads() {
  static std::atomic<int> threads(ThreadsFromEnvironment());
  return threads;
}

// What this CPU has, whatever is in use; Highway lists the best first.
const std::vector<int64_t>& AllTargets() {
  static const auto* targets =
      new std::vector<int64_t>(hwy::SupportedAndGeneratedTargets());
  return *targets;
}

}  // namespace

std::vector<std::string> KernelTargets() {
  std::vector<std::string> names;
  for (const int64_t target : AllTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

std::string KernelTarget() {
  AllTargets();
  return hwy::TargetName(hwy::SupportedAndGeneratedTargets().front());
}

bool UseKernelTarget(const std::string& name) {
  for (const int64_t target : AllTargets()) {
    if (hwy::TargetName(target) != name) continue;
    hwy::SetSupportedTargetsForTest(target);
    return true;
  }
  return false;
}

void SetKernelThreads(int threads) { Threads() = Clamped(threads); }
int KernelThreads() { return Threads(); }

}  // namespace coxswain
