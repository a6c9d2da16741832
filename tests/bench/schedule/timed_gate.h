#ifndef COXSWAIN_TESTS_BENCH_SCHEDULE_TIMED_GATE_H_
#define COXSWAIN_TESTS_BENCH_SCHEDULE_TIMED_GATE_H_

#include <ctime>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "schedule/step_gate.h"

namespace coxswain::bench {

// Returns the processor time of the calling thread.
inline absl::Duration ThreadCpuTime() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return absl::DurationFromTimespec(now);
}

// Measures the time that the training thread spends in another StepGate.
class TimedGate : public schedule::StepGate {
 public:
  explicit TimedGate(schedule::StepGate* gate) : gate_(*gate) {}

  absl::Status Announce(const schedule::Ticket& ticket) override {
    const Meter meter(this);
    return gate_.Announce(ticket);
  }
  absl::Status AwaitGrant() override { return gate_.AwaitGrant(); }
  absl::StatusOr<schedule::Decision> Decide(
      const schedule::Vote& vote) override {
    const Meter meter(this);
    return gate_.Decide(vote);
  }
  void NoteBucket(int bucket) override { gate_.NoteBucket(bucket); }
  void NoteExchange(int64_t gradient_bytes, absl::Duration waited) override {
    gate_.NoteExchange(gradient_bytes, waited);
  }
  void Abort(const absl::Status& reason) override { gate_.Abort(reason); }

  // Returns the time since the last reset. It includes the cost of reading the
  // clocks: some tenths of a microsecond a call.
  absl::Duration wall() const { return wall_; }
  absl::Duration cpu() const { return cpu_; }
  void Reset() { wall_ = cpu_ = absl::ZeroDuration(); }

 private:
  class Meter {
   public:
    explicit Meter(TimedGate* gate)
        : gate_(*gate), wall_(Clock::Real()->Now()), cpu_(ThreadCpuTime()) {}
    ~Meter() {
      gate_.cpu_ += ThreadCpuTime() - cpu_;
      gate_.wall_ += Clock::Real()->Now() - wall_;
    }
    Meter(const Meter&) = delete;
    Meter& operator=(const Meter&) = delete;

   private:
    TimedGate& gate_;
    const absl::Time wall_;
    const absl::Duration cpu_;
  };

  schedule::StepGate& gate_;
  absl::Duration wall_;
  absl::Duration cpu_;
};

}  // namespace coxswain::bench

#endif  // COXSWAIN_TESTS_BENCH_SCHEDULE_TIMED_GATE_H_
