#include "client/device/emulated/one_way.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>

namespace coxswain {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

int64_t Futex(const std::atomic<uint32_t>* word, int operation, uint32_t value,
              const timespec* timeout) {
  return syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value,
                 timeout, nullptr, 0);
}

}  // namespace

void OneWay::Advance() {
  value_.fetch_add(1, std::memory_order_release);
  Futex(&value_, FUTEX_WAKE, INT_MAX, nullptr);
}

bool OneWay::AwaitBeyond(uint32_t seen, absl::Duration timeout) const {
  using SteadyClock = std::chrono::steady_clock;
  const auto start = SteadyClock::now();
  while (value() == seen) {
    const absl::Duration left =
        timeout - absl::FromChrono(SteadyClock::now() - start);
    if (left <= absl::ZeroDuration()) return false;
    const timespec slice =
        absl::ToTimespec(std::min(left, absl::Duration(absl::Minutes(1))));
    Futex(&value_, FUTEX_WAIT, seen, &slice);
  }
  return true;
}

}  // namespace coxswain
