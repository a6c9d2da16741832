#include "server/membership/membership.h"

#include <strings.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/membership/liveness.h"

namespace coxswain::server {
namespace {

constexpr size_t kDataKeyBytes = 32;

}  // namespace

Membership::Membership(const MembershipOptions& options,
                       const Dependencies& deps)
    : deps_(deps) {
  coordinator_.options = options;
  coordinator_.next_generation = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return Generation(next_generation_++);
  };
  coordinator_.new_data_key = [random = deps.random] {
    const std::shared_ptr<std::string> key(
        new std::string(kDataKeyBytes, '\0'), [](std::string* secret) {
          explicit_bzero(secret->data(), secret->size());
          delete secret;
        });
    for (size_t at = 0; at < kDataKeyBytes; at += sizeof(uint64_t)) {
      const uint64_t bits = random->Next();
      std::memcpy(key->data() + at, &bits, sizeof(bits));
    }
    return key;
  };
}

void Membership::AddObserver(GenerationObserver* observer) {
  observers_.push_back(observer);
}

bool Membership::ChangeJob(const std::string& name, Change change) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto found = jobs_.find(name);
    if (found == jobs_.end()) return false;
    ChangeLocked(change, &found->second, &calls);
  }
  RunAll(calls);
  return true;
}

void Membership::ChangeRunning(absl::string_view job, Generation generation,
                               Change change) {
  ChangeJob(std::string(job), [&](auto* running, auto now, auto* effects) {
    if (running->Runs(generation)) change(running, now, effects);
  });
}

bool Membership::ChangeAttached(uint64_t attachment, ChangeByRank change) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    const auto found = attachments_.find(attachment);
    if (found == attachments_.end()) return false;
    const auto& [name, rank] = found->second;
    const auto by_rank = [&, rank = rank](auto* job, auto now, auto* effects) {
      change(job, rank, now, effects);
    };
    ChangeLocked(by_rank, &jobs_.at(name), &calls);
  }
  RunAll(calls);
  return true;
}

void Membership::ChangeLocked(Change change, Job* job, Calls* calls) {
  JobEffects effects;
  change(&job->machine, deps_.clock->Now(), &effects);
  CarryOutLocked(std::move(effects), job, calls);
}

absl::StatusOr<Membership::Job*> Membership::FindOrAddJobLocked(
    const std::string& name, Calls* calls) {
  const auto found = jobs_.find(name);
  if (found != jobs_.end()) return &found->second;
  if (jobs_.size() >= static_cast<size_t>(options().max_jobs)) {
    const auto age = [](const Job& job) {
      return std::pair(job.machine.ended_at(), job.machine.generation());
    };
    auto oldest = jobs_.end();
    for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
      if (it->second.machine.state() != JobState::kEnded) continue;
      // Its observers are to know of its end before another job has its name.
      if (!it->second.notices->idle()) continue;
      if (oldest == jobs_.end() || age(it->second) < age(oldest->second)) {
        oldest = it;
      }
    }
    if (oldest == jobs_.end()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the coordinator has ", jobs_.size(),
                       " unfinished jobs; max_jobs is ", options().max_jobs));
    }
    ForgetLocked(oldest->second.machine, calls);
    jobs_.erase(oldest);
  }
  return AddJobLocked(name, deps_.clock->Now());
}

Membership::Job* Membership::AddJobLocked(const std::string& name,
                                          absl::Time now) {
  return &jobs_
              .emplace(name, Job{JobMembership(&coordinator_, name, now),
                                 std::make_shared<OrderedCalls>()})
              .first->second;
}

void Membership::ForgetLocked(const JobMembership& job, Calls* calls) {
  StateBatch batch;
  job.Forget(&batch);
  // Also that of a job whose own record is in quarantine.
  deps_.plans->Forget(job.name(), &batch);
  if (batch.empty()) return;
  WriteLocked(
      std::move(batch),
      [name = job.name()](const absl::Status& status) {
        if (status.ok()) return;
        LogWarning("job_not_forgotten",
                   {{"job", name}, {"error", status.message()}});
      },
      calls);
}

void Membership::Tick() {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    if (shut_down_) return;
    const absl::Time now = deps_.clock->Now();
    const bool paused = WasPaused(now, last_tick_, options().lease);
    if (paused) {
      LogWarning("coordinator_stood_still",
                 {{"for", absl::FormatDuration(now - last_tick_)}});
    }
    last_tick_ = now;
    // It is set, and the other one stands still while the machine is suspended.
    coordinator_.calendar = deps_.clock->WallTime() - now;
    for (auto& entry : jobs_) {
      JobEffects effects;
      entry.second.machine.Tick(paused, now, &effects);
      CarryOutLocked(std::move(effects), &entry.second, &calls);
    }
    if (now >= drop_garbage_at_) DropGarbageLocked(&calls);
  }
  RunAll(calls);
  // What the calls took was no standing still: requests were served.
  MutexLock lock(&mutex_);
  last_tick_ = deps_.clock->Now();
}

void Membership::Shutdown() {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    shut_down_ = true;
    for (auto& entry : jobs_) {
      JobEffects effects;
      entry.second.machine.Shutdown(
          absl::UnavailableError("coordinator shuts down"), deps_.clock->Now(),
          &effects);
      CarryOutLocked(std::move(effects), &entry.second, &calls);
    }
  }
  RunAll(calls);
}

}  // namespace coxswain::server
