#include "client/comm/shm/phases.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/clock.h"
#include "base/processors.h"

namespace coxswain {
namespace {

// Long enough for a peer that reduces a few kilobytes; short against what a
// scheduler gives a thread, so that a peer without a core gets this one soon.
constexpr absl::Duration kSpin = absl::Microseconds(30);
constexpr int kSpinsPerLook = 32;

absl::Time Now() { return Clock::Real()->Now(); }

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The processors that this process may run on, a bit for each.
void PublishProcessors(std::atomic<uint64_t>* words) {
  const Processors own = ProcessorsOfThread();
  static_assert(Processors().size() == 64 * Phases::kProcessorWords);
  for (size_t i = 0; i < own.size(); ++i) {
    if (own.test(i)) words[i / 64].fetch_or(uint64_t{1} << (i % 64));
  }
}

// The words are shared between processes: no private futexes.
void FutexWait(std::atomic<uint32_t>& word, uint32_t value,
               absl::Duration timeout) {
  const timespec time = absl::ToTimespec(timeout);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value,
          &time, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX,
          nullptr, nullptr, 0);
}

void Ring(std::atomic<uint32_t>& bell) {
  bell.fetch_add(1);
  FutexWake(bell);
}

}  // namespace

Phases::Phases(char* lines, int64_t stride, int rank, int size)
    : lines_(lines), stride_(stride), rank_(rank), size_(size) {
  PublishProcessors(line(rank).processors);
}

void Phases::DecideOnSpinning() {
  int processors = 0;
  for (int word = 0; word < kProcessorWords; ++word) {
    uint64_t together = 0;
    for (int peer = 0; peer < size_; ++peer) {
      together |= line(peer).processors[word].load(std::memory_order_relaxed);
    }
    processors += __builtin_popcountll(together);
  }
  if (size_ <= processors) spin_ = kSpin;
  decided_ = true;
}

Phases::Line& Phases::line(int rank) const {
  return *reinterpret_cast<Line*>(lines_ + rank * stride_);
}

void Phases::Arrive() {
  line(rank_).arrived.store(++phase_, std::memory_order_seq_cst);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (line(peer).sleeping.load(std::memory_order_seq_cst) != 0) {
      Ring(line(peer).bell);
    }
  }
}

int Phases::Missing() const {
  for (int peer = 0; peer < size_; ++peer) {
    const uint32_t arrived = line(peer).arrived.load(std::memory_order_seq_cst);
    // The counters wrap around; they are never far apart.
    if (static_cast<int32_t>(arrived - phase_) < 0) return peer;
  }
  return -1;
}

bool Phases::Met() const { return Missing() < 0; }

Phases::Outcome Phases::Await(absl::Time deadline) {
  if (Met() || Spin(deadline)) return Outcome::kMet;
  const Outcome outcome = Sleep(deadline);
  if (outcome == Outcome::kMet && !decided_) DecideOnSpinning();
  return outcome;
}

bool Phases::Spin(absl::Time deadline) const {
  if (spin_ == absl::ZeroDuration()) return false;
  const absl::Time end = std::min(deadline, Now() + spin_);
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (Met()) return true;
      Relax();
    }
  } while (!stopped_.load() && Now() < end);
  return false;
}

Phases::Outcome Phases::Sleep(absl::Time deadline) {
  Line& own = line(rank_);
  Outcome outcome = Outcome::kMet;
  own.sleeping.store(1, std::memory_order_seq_cst);
  while (true) {
    // The bell is read first: a rank that rings it after this line wakes the
    // wait.
    const uint32_t bell = own.bell.load(std::memory_order_seq_cst);
    if (Met()) break;
    if (stopped_.load()) {
      outcome = Outcome::kStopped;
      break;
    }
    const absl::Duration left = deadline - Now();
    if (left <= absl::ZeroDuration()) {
      outcome = Outcome::kLate;
      break;
    }
    FutexWait(own.bell, bell, std::min(left, absl::Hours(1)));
  }
  own.sleeping.store(0, std::memory_order_seq_cst);
  return outcome;
}

void Phases::Stop() {
  stopped_.store(true);
  Ring(line(rank_).bell);
}

}  // namespace coxswain
