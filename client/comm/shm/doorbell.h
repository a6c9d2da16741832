#ifndef COXSWAIN_CLIENT_COMM_SHM_DOORBELL_H_
#define COXSWAIN_CLIENT_COMM_SHM_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace coxswain {

// Where one thread of a process sleeps until a word in shared memory has
// changed that another process writes. Lies in shared memory itself, zero at
// first.
//
// A thread that sleeps sets a flag, and one that writes rings the bell of those
// with a flag; both first write their own word and then read the other's, in a
// total order, so that at least one of them sees the other and no wake-up is
// missed. tests/simulation/phases.pml has this as a model that is checked
// exhaustively.
struct Doorbell {
  std::atomic<uint32_t> bell;  // the futex
  std::atomic<uint32_t> sleeping;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Wakes the thread that sleeps there. Any thread.
void Ring(Doorbell& door);
// The same if one does; after what it waits for was written, in the total order
// (memory_order_seq_cst).
void RingIfAsleep(Doorbell& door);

// Sleeps until `done`, which is called again whenever the bell was rung, and at
// times without a reason. Returns false at the deadline, by
// Clock::Real()->Now(). `done` reads what it waits for in the total order. One
// thread at a time.
template <typename Done>
bool SleepUntil(Doorbell& door, absl::Time deadline, Done done);

// As SleepUntil, but spins; for a short while.
template <typename Done>
bool SpinUntil(absl::Time deadline, Done done);

// Implementation.

// Sleeps while the bell is `heard`; at most until the deadline. Returns false
// once that has passed.
bool SleepWhile(Doorbell& door, uint32_t heard, absl::Time deadline);
void Relax();
bool IsBefore(absl::Time deadline);

template <typename Done>
bool SleepUntil(Doorbell& door, absl::Time deadline, Done done) {
  door.sleeping.store(1, std::memory_order_seq_cst);
  bool is_done = false;
  while (true) {
    // The bell is read first: a thread that rings it after this line wakes the
    // wait.
    const uint32_t heard = door.bell.load(std::memory_order_seq_cst);
    is_done = done();
    if (is_done || !SleepWhile(door, heard, deadline)) break;
  }
  door.sleeping.store(0, std::memory_order_seq_cst);
  return is_done;
}

template <typename Done>
bool SpinUntil(absl::Time deadline, Done done) {
  constexpr int kSpinsPerLook = 32;
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (done()) return true;
      Relax();
    }
  } while (IsBefore(deadline));
  return false;
}

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_SHM_DOORBELL_H_
