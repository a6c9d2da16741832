#ifndef COXSWAIN_SERVER_TELEMETRY_TELEMETRY_H_
#define COXSWAIN_SERVER_TELEMETRY_TELEMETRY_H_

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/histogram.h"
#include "base/ids.h"
#include "base/mutex.h"
#include "schedule/plan.h"
#include "server/generation/fence.h"
#include "server/membership/member.h"
#include "server/membership/membership_types.h"
#include "server/options/options.h"
#include "server/telemetry/stragglers.h"

namespace coxswain::server {

// How a rank spent one step, in seconds: v1.StepTiming. Of single precision,
// because many are kept.
struct StepTiming {
  int64_t step = 0;
  int64_t payload_bytes = 0;
  int64_t wire_bytes = 0;
  float compute = 0;
  float wait = 0;
  float exchange = 0;

  float duration() const { return compute + wait + exchange; }

  // Returns whether nothing is negative, infinite or not a number.
  bool Sensible() const {
    constexpr float kMostSeconds = 1e9;
    const auto sensible = [](float seconds) {
      return std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds;
    };
    return step >= 0 && payload_bytes >= 0 && wire_bytes >= 0 &&
           sensible(compute) && sensible(wait) && sensible(exchange);
  }
};

// Bytes that ranks moved, by their heartbeats.
struct Traffic {
  int64_t gradient_bytes = 0;  // were averaged, in the gradients' own type
  int64_t payload_bytes = 0;   // handed to collectives, for whatever purpose
  int64_t wire_bytes = 0;      // left the processes

  void Add(const Traffic& other) {
    gradient_bytes += other.gradient_bytes;
    payload_bytes += other.payload_bytes;
    wire_bytes += other.wire_bytes;
  }
};

// The order of a ring among hosts, as its first rank reports it.
struct JobRing {
  std::string order;
  std::string reason;
  int rank = 0;      // that reports it
  Generation since;  // of the first with this order
};

// What a job did since this coordinator first knew of it.
struct JobTelemetry {
  std::string job;
  int64_t steps = 0;    // that the job made: of its fastest rank
  int64_t refused = 0;  // timings that made no sense
  Traffic traffic;      // of all hooks
  // By hook: the one of the plan in force when the heartbeat came. Past
  // hooks_per_job, "other".
  std::map<std::string, Traffic> hooks;
  // Of all ranks.
  Histogram duration, compute, wait, exchange;
};

// A plan that heartbeats were counted under.
struct SeenPlan {
  schedule::Plan plan;
  absl::Time seen;
  int64_t step = 0;  // of the heartbeat that it was seen with
};

// Holds how the ranks spend their steps, and what they move: from heartbeats,
// in memory only, within limits. For the status page and the metrics; nothing
// is decided by it.
//
// Life-cycle: registered as an observer of the membership; then any thread.
// Thread-safe. Each job has a lock of its own, which is held while numbers are
// copied and never while they are worked on.
class Telemetry : public GenerationObserver {
 public:
  // Of one heartbeat: the newest count.
  static constexpr size_t kMaxTimings = 64;

  // `clock` must outlive the store.
  Telemetry(const TelemetryLimits& limits, const Clock* clock)
      : limits_(limits), clock_(clock) {}

  // A heartbeat of an attached rank, under the plan that is in force.
  // Ignored if it is not of the job's last generation; timings that make no
  // sense are counted, and dropped.
  void Note(const AttachedRank& attached, const schedule::Plan& plan,
            const Progress& progress, const std::vector<StepTiming>& timings);

  // A ring that an attached rank has chosen, as "NAME: ORDER; REASON". Of
  // several ranks that of the lowest counts.
  void NoteRing(const AttachedRank& attached, absl::string_view ring);
  // Returns that of the job's last generation. Nothing: not known.
  std::optional<JobRing> RingOf(absl::string_view job) const;

  // Forgets jobs that ended long ago.
  void Tick(absl::Time now);

  // Returns what all ranks computed in the last `last` steps of a job. Empty:
  // nothing is known.
  StepMatrix Matrix(absl::string_view job, int last) const;
  // All that is known of these ranks, each ascending from this step on.
  std::vector<std::vector<StepTiming>> Timings(absl::string_view job,
                                               const std::vector<int>& ranks,
                                               int64_t first_step) const;
  // Nothing: not known.
  std::optional<JobTelemetry> Totals(absl::string_view job) const;
  std::vector<JobTelemetry> AllTotals() const;
  // Returns the newest first.
  std::vector<SeenPlan> Plans(absl::string_view job) const;

  // Of all jobs, also of those that are forgotten.
  struct Generations {
    int64_t begun = 0;
    // "left" (all, cleanly), "member" (one was lost, or failed),
    // "schedule" (ranks did different things, or nothing), "other".
    std::map<std::string, int64_t> ended;
  };
  Generations generations() const;
  int64_t records() const { return records_.load(); }
  const TelemetryLimits& limits() const { return limits_; }

  void OnGenerationBegan(const GenerationBegin& begin) override;
  absl::Status OnResume(const std::vector<GenerationResumed>& running) override;
  void OnGenerationEnded(absl::string_view job, Generation generation,
                         const absl::Status& reason) override;

 private:
  // A ring of the newest timings.
  struct Rank {
    std::vector<StepTiming> ring;
    size_t oldest = 0;  // once it is full
    // As in the last heartbeat; nullopt: there was none, and what was before
    // it is not known.
    std::optional<Traffic> said;

    const StepTiming& At(size_t i) const {
      return ring[(oldest + i) % ring.size()];
    }
  };
  struct Job {
    Mutex mutex;
    Generation generation ABSL_GUARDED_BY(mutex);
    size_t capacity ABSL_GUARDED_BY(mutex) = 0;  // of each ring
    std::vector<Rank> ranks ABSL_GUARDED_BY(mutex);
    int64_t newest_step ABSL_GUARDED_BY(mutex) = -1;
    JobTelemetry totals ABSL_GUARDED_BY(mutex);
    std::optional<JobRing> ring ABSL_GUARDED_BY(mutex);
    std::optional<JobRing> past_ring ABSL_GUARDED_BY(mutex);
    std::vector<SeenPlan> plans ABSL_GUARDED_BY(mutex);  // the oldest first
    std::optional<absl::Time> ended ABSL_GUARDED_BY(mutex);
  };
  using JobPtr = std::shared_ptr<Job>;

  JobPtr Find(absl::string_view job) const;
  std::vector<JobPtr> All() const;
  void Begin(const GenerationBegin& begin, bool resumed);
  void ClearRanks(Job* job) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void NoteTraffic(const Progress& progress, const std::string& hook,
                   Rank* rank, Job* job) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void NotePlan(const schedule::Plan& plan, int64_t step,
                Job* job) const ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void NoteTiming(const StepTiming& timing, Rank* rank,
                  Job* job) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void Keep(const StepTiming& timing, size_t capacity, Rank* rank);

  const TelemetryLimits limits_;
  const Clock* const clock_;
  std::atomic<int64_t> records_{0};
  mutable Mutex mutex_;  // taken before that of a job
  std::map<std::string, JobPtr, std::less<>> jobs_ ABSL_GUARDED_BY(mutex_);
  Generations generations_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TELEMETRY_TELEMETRY_H_
