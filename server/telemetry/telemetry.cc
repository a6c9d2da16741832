#include "server/telemetry/telemetry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/peer_text.h"
#include "proto/types.pb.h"
#include "transport/error_detail.h"

namespace coxswain::server {
namespace {

// As a label of metrics: specs may have kilobytes.
constexpr size_t kMaxHookBytes = 128;

const char* ReasonOf(const absl::Status& why) {
  switch (DetailOf(why).kind_case()) {
    case v1::ErrorDetail::kMemberLost:
      return "member";
    case v1::ErrorDetail::kScheduleMismatch:
      return "schedule";
    case v1::ErrorDetail::KIND_NOT_SET:
      return absl::IsAborted(why) ? "left" : "other";
    default:
      return "other";
  }
}

}  // namespace

Telemetry::JobPtr Telemetry::Find(absl::string_view job) const {
  MutexLock lock(&mutex_);
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : found->second;
}

std::vector<Telemetry::JobPtr> Telemetry::All() const {
  MutexLock lock(&mutex_);
  std::vector<JobPtr> jobs;
  for (const auto& [name, job] : jobs_) jobs.push_back(job);
  return jobs;
}

void Telemetry::ClearRanks(Job* job) {
  for (const Rank& rank : job->ranks) {
    records_ -= static_cast<int64_t>(rank.ring.size());
  }
  job->ranks.clear();
}

void Telemetry::Begin(const GenerationBegin& begin, bool resumed) {
  JobPtr job;
  {
    MutexLock lock(&mutex_);
    if (!resumed) ++generations_.begun;
    if (jobs_.count(begin.job) == 0 && jobs_.size() >= limits_.jobs) return;
    JobPtr& entry = jobs_[begin.job];
    if (entry == nullptr) entry = std::make_shared<Job>();
    job = entry;
  }
  MutexLock lock(&job->mutex);
  if (begin.generation < job->generation) return;
  ClearRanks(job.get());
  job->totals.job = begin.job;
  job->generation = begin.generation;
  job->ended.reset();
  job->past_ring = std::move(job->ring);
  job->ring.reset();
  job->newest_step = -1;
  const int64_t ranks = std::max(begin.world_size, 1);
  job->capacity = static_cast<size_t>(std::clamp<int64_t>(
      limits_.records_per_job / ranks, 1, std::max(limits_.steps_per_rank, 1)));
  job->ranks.resize(static_cast<size_t>(ranks));
  // Of a generation that began here, all is known from its begin on.
  if (!resumed) {
    for (Rank& rank : job->ranks) rank.said = Traffic();
  }
}

void Telemetry::OnGenerationBegan(const GenerationBegin& begin) {
  Begin(begin, /*resumed=*/false);
}

absl::Status Telemetry::OnResume(
    const std::vector<GenerationResumed>& running) {
  for (const GenerationResumed& resumed : running) {
    Begin(resumed.begin, /*resumed=*/true);
  }
  return absl::OkStatus();
}

void Telemetry::OnGenerationEnded(absl::string_view job, Generation generation,
                                  const absl::Status& reason) {
  if (absl::IsUnavailable(reason)) return;  // it goes on, elsewhere
  {
    MutexLock lock(&mutex_);
    ++generations_.ended[ReasonOf(reason)];
  }
  const JobPtr found = Find(job);
  if (found == nullptr) return;
  MutexLock lock(&found->mutex);
  if (found->generation == generation) found->ended = clock_->Now();
}

void Telemetry::Tick(absl::Time now) {
  MutexLock lock(&mutex_);
  for (auto entry = jobs_.begin(); entry != jobs_.end();) {
    const JobPtr job = entry->second;
    MutexLock job_lock(&job->mutex);
    if (job->ended.has_value() && now - *job->ended > limits_.kept_after_end) {
      ClearRanks(job.get());
      entry = jobs_.erase(entry);
    } else {
      ++entry;
    }
  }
}

void Telemetry::Note(const AttachedRank& attached, const schedule::Plan& plan,
                     const Progress& progress,
                     const std::vector<StepTiming>& timings) {
  const JobPtr job = Find(attached.job);
  if (job == nullptr) return;
  MutexLock lock(&job->mutex);
  const auto index = static_cast<size_t>(attached.rank);
  if (job->generation != attached.generation || index >= job->ranks.size())
    return;
  Rank& rank = job->ranks[index];
  NotePlan(plan, progress.step, job.get());
  NoteTraffic(progress, Shorten(plan.hook, kMaxHookBytes), &rank, job.get());
  const size_t skip =
      timings.size() > kMaxTimings ? timings.size() - kMaxTimings : 0;
  for (size_t i = skip; i < timings.size(); ++i) {
    NoteTiming(timings[i], &rank, job.get());
  }
}

void Telemetry::NoteRing(const AttachedRank& attached, absl::string_view ring) {
  const std::pair<absl::string_view, absl::string_view> named =
      absl::StrSplit(ring, absl::MaxSplits(": ", 1));
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(named.second, absl::MaxSplits("; ", 1));
  const JobPtr job = Find(attached.job);
  if (job == nullptr || parts.first.empty()) return;
  MutexLock lock(&job->mutex);
  if (job->generation != attached.generation) return;
  if (job->ring.has_value() && job->ring->rank < attached.rank) return;
  JobRing noted = {std::string(parts.first), std::string(parts.second),
                   attached.rank, attached.generation};
  for (const auto& before : {job->past_ring, job->ring}) {
    if (before.has_value() && before->order == noted.order) {
      noted.since = before->since;
    }
  }
  job->ring = std::move(noted);
}

std::optional<JobRing> Telemetry::RingOf(absl::string_view name) const {
  const JobPtr job = Find(name);
  if (job == nullptr) return std::nullopt;
  MutexLock lock(&job->mutex);
  return job->ring;
}

void Telemetry::NoteTraffic(const Progress& progress, const std::string& hook,
                            Rank* rank, Job* job) {
  const Traffic said = {progress.gradient_bytes, progress.payload_bytes,
                        progress.wire_bytes};
  const Traffic before = rank->said.value_or(said);
  rank->said = said;
  // A rank that counts backwards is not believed.
  const auto more = [](int64_t now, int64_t then) {
    return std::max<int64_t>(now - then, 0);
  };
  const Traffic moved = {more(said.gradient_bytes, before.gradient_bytes),
                         more(said.payload_bytes, before.payload_bytes),
                         more(said.wire_bytes, before.wire_bytes)};
  job->totals.traffic.Add(moved);
  auto& hooks = job->totals.hooks;
  const bool room =
      hooks.count(hook) > 0 || hooks.size() < limits_.hooks_per_job;
  hooks[room ? hook : "other"].Add(moved);
}

void Telemetry::NotePlan(const schedule::Plan& plan, int64_t step,
                         Job* job) const {
  if (plan.version == 0) return;
  if (!job->plans.empty() && job->plans.back().plan.version >= plan.version) {
    return;
  }
  job->plans.push_back({plan, clock_->Now(), step});
  if (job->plans.size() > limits_.plans_per_job) {
    job->plans.erase(job->plans.begin());
  }
}

void Telemetry::NoteTiming(const StepTiming& timing, Rank* rank, Job* job) {
  const bool sensible = timing.Sensible() && timing.step <= schedule::kMaxStep;
  if (!sensible) {
    ++job->totals.refused;
    return;
  }
  // Repeated.
  if (!rank->ring.empty() &&
      timing.step <= rank->At(rank->ring.size() - 1).step) {
    return;
  }
  if (timing.step > job->newest_step) {
    // A rank names the newest of many steps only; the first one of a generation
    // shows nothing of those before.
    job->totals.steps +=
        job->newest_step < 0 ? 1 : timing.step - job->newest_step;
    job->newest_step = timing.step;
  }
  job->totals.duration.Observe(timing.duration());
  job->totals.compute.Observe(timing.compute);
  job->totals.wait.Observe(timing.wait);
  job->totals.exchange.Observe(timing.exchange);
  Keep(timing, job->capacity, rank);
}

void Telemetry::Keep(const StepTiming& timing, size_t capacity, Rank* rank) {
  const bool full = rank->ring.size() >= capacity ||
                    (records_.load() >= limits_.records && !rank->ring.empty());
  if (full) {
    rank->ring[rank->oldest] = timing;
    rank->oldest = (rank->oldest + 1) % rank->ring.size();
    return;
  }
  if (records_.load() >= limits_.records) return;
  // A ring that has turned begins anew in order before it grows.
  std::rotate(rank->ring.begin(),
              rank->ring.begin() + static_cast<std::ptrdiff_t>(rank->oldest),
              rank->ring.end());
  rank->oldest = 0;
  rank->ring.push_back(timing);
  ++records_;
}

StepMatrix Telemetry::Matrix(absl::string_view name, int last) const {
  StepMatrix matrix;
  const JobPtr job = Find(name);
  if (job == nullptr) return matrix;
  MutexLock lock(&job->mutex);
  if (job->newest_step < 0) return matrix;
  const int64_t steps =
      std::min<int64_t>(std::max(last, 1), job->newest_step + 1);
  matrix.steps = static_cast<size_t>(steps);
  matrix.first_step = job->newest_step + 1 - steps;
  matrix.ranks = job->ranks.size();
  matrix.compute.assign(matrix.ranks * matrix.steps, -1);
  matrix.duration.assign(matrix.ranks * matrix.steps, -1);
  for (size_t r = 0; r < matrix.ranks; ++r) {
    const Rank& rank = job->ranks[r];
    for (size_t i = rank.ring.size(); i > 0; --i) {
      const StepTiming& timing = rank.At(i - 1);
      if (timing.step < matrix.first_step) break;
      const size_t cell = r * matrix.steps +
                          static_cast<size_t>(timing.step - matrix.first_step);
      matrix.compute[cell] = timing.compute;
      matrix.duration[cell] = timing.duration();
    }
  }
  return matrix;
}

std::vector<std::vector<StepTiming>> Telemetry::Timings(
    absl::string_view name, const std::vector<int>& ranks,
    int64_t first_step) const {
  std::vector<std::vector<StepTiming>> timings(ranks.size());
  const JobPtr job = Find(name);
  if (job == nullptr) return timings;
  MutexLock lock(&job->mutex);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto index = static_cast<size_t>(ranks[i]);
    if (index >= job->ranks.size()) continue;
    const Rank& rank = job->ranks[index];
    for (size_t j = 0; j < rank.ring.size(); ++j) {
      if (rank.At(j).step >= first_step) timings[i].push_back(rank.At(j));
    }
  }
  return timings;
}

std::optional<JobTelemetry> Telemetry::Totals(absl::string_view name) const {
  const JobPtr job = Find(name);
  if (job == nullptr) return std::nullopt;
  MutexLock lock(&job->mutex);
  return job->totals;
}

std::vector<JobTelemetry> Telemetry::AllTotals() const {
  std::vector<JobTelemetry> totals;
  for (const JobPtr& job : All()) {
    MutexLock lock(&job->mutex);
    totals.push_back(job->totals);
  }
  return totals;
}

std::vector<SeenPlan> Telemetry::Plans(absl::string_view name) const {
  const JobPtr job = Find(name);
  if (job == nullptr) return {};
  MutexLock lock(&job->mutex);
  return {job->plans.rbegin(), job->plans.rend()};
}

Telemetry::Generations Telemetry::generations() const {
  MutexLock lock(&mutex_);
  return generations_;
}

}  // namespace coxswain::server
