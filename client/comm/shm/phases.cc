#include "client/comm/shm/phases.h"

#include <algorithm>

#include "base/clock.h"
#include "base/processors.h"

namespace coxswain {
namespace {

// Long enough for a peer that reduces a few kilobytes; short against what a
// scheduler gives a thread, so that a peer without a core gets this one soon.
constexpr absl::Duration kSpin = absl::Microseconds(30);

// The processors that this process may run on, a bit for each.
void PublishProcessors(std::atomic<uint64_t>* words) {
  const Processors own = ProcessorsOfThread();
  static_assert(Processors().size() == 64 * Phases::kProcessorWords);
  for (size_t i = 0; i < own.size(); ++i) {
    if (own.test(i)) words[i / 64].fetch_or(uint64_t{1} << (i % 64));
  }
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
    RingIfAsleep(line(peer).door);
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
  SpinUntil(std::min(deadline, Clock::Real()->Now() + spin_),
            [&] { return Met() || stopped_.load(); });
  return Met();
}

Phases::Outcome Phases::Sleep(absl::Time deadline) {
  Outcome outcome = Outcome::kLate;
  SleepUntil(line(rank_).door, deadline, [&] {
    if (Met()) {
      outcome = Outcome::kMet;
    } else if (stopped_.load()) {
      outcome = Outcome::kStopped;
    }
    return outcome != Outcome::kLate;
  });
  return outcome;
}

void Phases::Stop() {
  stopped_.store(true);
  Ring(line(rank_).door);
}

}  // namespace coxswain
