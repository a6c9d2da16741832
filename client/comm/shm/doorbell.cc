#include "client/comm/shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/clock.h"

namespace coxswain {
namespace {

absl::Time Now() { return Clock::Real()->Now(); }

}  // namespace

// The words are shared between processes: no private futexes.
void Ring(Doorbell& door) {
  door.bell.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&door.bell), FUTEX_WAKE,
          INT_MAX, nullptr, nullptr, 0);
}

void RingIfAsleep(Doorbell& door) {
  if (door.sleeping.load(std::memory_order_seq_cst) != 0) Ring(door);
}

bool SleepWhile(Doorbell& door, uint32_t heard, absl::Time deadline) {
  const absl::Duration left = deadline - Now();
  if (left <= absl::ZeroDuration()) return false;
  const timespec time = absl::ToTimespec(std::min(left, absl::Hours(1)));
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&door.bell), FUTEX_WAIT, heard,
          &time, nullptr, 0);
  return true;
}

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool IsBefore(absl::Time deadline) { return Now() < deadline; }

}  // namespace coxswain
