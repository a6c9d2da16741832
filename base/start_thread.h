#ifndef COXSWAIN_BASE_START_THREAD_H_
#define COXSWAIN_BASE_START_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace coxswain {

// Returns a thread that calls `run`. Fails with RESOURCE_EXHAUSTED where the
// system has none left, which std::thread's constructor throws.
absl::StatusOr<std::thread> StartThread(std::function<void()> run);

}  // namespace coxswain

#endif  // COXSWAIN_BASE_START_THREAD_H_
