#include "tests/simulation/membership_coordinator.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership_records.h"
#include "server/state/cluster_records.h"

namespace coxswain::simulation {
namespace {

constexpr char kJob[] = "job";

}  // namespace

schedule::Plan MembershipCoordinator::PlanOf(int64_t version) const {
  schedule::Plan plan;
  plan.version = version;
  plan.hook = "allreduce";
  plan.terms.stall_timeout = around_.history->stall_timeout;
  return plan;
}

MembershipCoordinator::MembershipCoordinator(
    const MembershipSurroundings& surroundings)
    : around_(surroundings),
      timeline_(*surroundings.timeline),
      dice_(*surroundings.dice),
      store_(*surroundings.store),
      referee_(*surroundings.referee),
      machine_(&coordinator_, kJob, timeline_.now()) {
  server::MemoryStateStore& durable = *store_.durable();
  auto cluster = server::ReadClusterRecords(durable);
  COXSWAIN_CHECK(cluster.ok());
  cluster->id = "cluster";
  coordinator_.options = around_.history->options;
  coordinator_.cluster_id = cluster->id;
  coordinator_.term = Term(cluster->next_term);
  next_generation_ = cluster->next_generation;
  coordinator_.next_generation = [this] {
    const bool repeats =
        around_.sabotage == MembershipSabotage::kRepeatsNumber &&
        next_generation_ > 1;
    return Generation(repeats ? next_generation_ - 1 : next_generation_++);
  };
  coordinator_.new_data_key = [] {
    return std::make_shared<const std::string>("a key");
  };
  ++cluster->next_term;
  cluster->next_plan_version = 1;
  server::StateBatch batch;
  server::PutClusterRecords(*cluster, &batch);
  COXSWAIN_CHECK(durable.Apply(batch).ok());
  TakeUp();
}

void MembershipCoordinator::TakeUp() {
  server::MemoryStateStore& durable = *store_.durable();
  const auto loaded = server::LoadJobs(durable, Generation(next_generation_));
  COXSWAIN_CHECK(loaded.ok());
  const auto stale = server::StaleTables(durable, loaded->jobs);
  COXSWAIN_CHECK(stale.ok());
  std::optional<server::LoadedJob> found = store_.Load();
  referee_.OnTerm(coordinator_.term, found);
  if (found.has_value() && loaded->jobs.empty()) {
    referee_.Violate(loaded->unreadable.front().reason);
  }
  if (!found.has_value()) return;
  const auto version = durable.Get(kPlanTable, kJob);
  COXSWAIN_CHECK(version.ok() && absl::SimpleAtoi(*version, &newest_plan_));
  if (around_.sabotage == MembershipSabotage::kForgetsSurvivor &&
      found->members.size() > found->departures.size()) {
    int rank = 0;
    while (found->departures.count(rank) > 0) ++rank;
    found->departures[rank].left = true;
  }
  machine_.Restore(*std::move(found), PlanOf(newest_plan_), now());
  const auto resumed = machine_.Resume(now());
  if (resumed.has_value()) referee_.OnResumed(*resumed);
  ChangeJob([&](server::JobEffects* effects) {
    machine_.FinishResume({}, now(), effects);
  });
  referee_.OnRestored(machine_);
  server::StateBatch garbage;
  for (const std::string& table : *stale) garbage.DeleteTable(table);
  Discard(garbage);
}

std::function<void()> MembershipCoordinator::IfAlive(
    std::function<void()> call) const {
  return [alive = std::weak_ptr<bool>(alive_), call = std::move(call)] {
    if (!alive.expired()) call();
  };
}

void MembershipCoordinator::ChangeJob(Change change) {
  server::JobEffects effects;
  referee_.OnChange();
  change(&effects);
  Calls calls;
  CarryOut(std::move(effects), &calls);
  Run(std::move(calls));
}

void MembershipCoordinator::ChangeAttached(uint64_t attachment,
                                           ChangeByRank change) {
  const auto found = attachments_.find(attachment);
  if (found == attachments_.end()) return;
  const int rank = found->second;
  ChangeJob([&](server::JobEffects* effects) { change(rank, effects); });
}

void MembershipCoordinator::Run(Calls calls) {
  if (calls.empty()) return;
  const absl::Duration slowest = around_.history->slowest_call;
  if (slowest == absl::ZeroDuration() || dice_.Chance(0.5)) {
    for (const auto& call : calls) call();
    return;
  }
  ++pending_calls_;
  timeline_.In(dice_.Between(absl::ZeroDuration(), slowest),
               IfAlive([this, calls = std::move(calls)] {
                 --pending_calls_;
                 for (const auto& call : calls) call();
               }));
}

void MembershipCoordinator::RunNotices() {
  if (std::exchange(noticing_, true)) return;
  while (!notices_.empty()) {
    const std::function<void()> notice = std::move(notices_.front());
    notices_.pop_front();
    notice();
  }
  noticing_ = false;
}

std::function<bool()> MembershipCoordinator::Saved() const {
  return [this, saved = machine_.CheckSaved().ok(), failures = save_failures_] {
    return saved && failures == save_failures_;
  };
}

uint64_t MembershipCoordinator::Join(server::JoinRequest request,
                                     server::JoinCallback callback) {
  const uint64_t join_id = next_handle_++;
  server::NormaliseManifest(&request.manifest);
  joins_[join_id] = request.identity;
  referee_.OnJoin(join_id, request, machine_.commit() != nullptr);
  ChangeJob([&](server::JobEffects* effects) {
    machine_.Take(server::job_input::Join{std::move(request),
                                          std::move(callback), join_id},
                  now(), effects);
  });
  referee_.AfterJoin(join_id);
  return join_id;
}

void MembershipCoordinator::Withdraw(uint64_t join_id) {
  const auto found = joins_.find(join_id);
  if (found == joins_.end()) return;
  const WorkerIdentity identity = found->second;
  joins_.erase(found);
  referee_.OnWithdraw(join_id, machine_.commit() != nullptr);
  ChangeJob([&](server::JobEffects* effects) {
    machine_.Take(server::job_input::Withdraw{join_id, identity}, now(),
                  effects);
  });
}

void MembershipCoordinator::Leave(Generation generation,
                                  Incarnation incarnation,
                                  const server::LeaveNotice& notice,
                                  server::StatusCallback callback) {
  referee_.OnLeave(generation, incarnation, notice);
  const auto answer = [=, callback =
                              std::move(callback)](const absl::Status& status) {
    referee_.OnLeaveAnswered(generation, incarnation, notice, status);
    callback(status);
  };
  ChangeJob([&](server::JobEffects* effects) {
    machine_.Take(
        server::job_input::Leave{generation, incarnation, notice, answer},
        now(), effects);
  });
}

void MembershipCoordinator::ReportExit(const server::ExitReport& report,
                                       server::StatusCallback callback) {
  referee_.OnExit(report.incarnation);
  const auto answer = [=, callback =
                              std::move(callback)](const absl::Status& status) {
    referee_.OnExitAnswered(report.incarnation, status);
    callback(status);
  };
  ChangeJob([&](server::JobEffects* effects) {
    machine_.Take(server::job_input::Exit{report, answer}, now(), effects);
  });
}

absl::StatusOr<uint64_t> MembershipCoordinator::Attach(Generation generation,
                                                       Incarnation incarnation,
                                                       const StreamSink& sink) {
  const uint64_t attachment = next_handle_;
  server::JobEffects effects;
  referee_.OnChange();
  const auto rank = machine_.Attach(generation, incarnation, attachment, sink,
                                    now(), &effects);
  if (!rank.ok()) {
    if (generation == machine_.generation()) {
      referee_.OnSign(incarnation, now());
    }
    return rank.status();
  }
  ++next_handle_;
  Calls calls;
  CarryOut(std::move(effects), &calls);
  attachments_[attachment] = *rank;
  referee_.OnAttached(generation, incarnation, sink.stream);
  Run(std::move(calls));
  return attachment;
}

void MembershipCoordinator::Heartbeat(uint64_t attachment,
                                      const server::Progress& progress) {
  ChangeAttached(attachment, [&](int rank, server::JobEffects*) {
    referee_.OnHeartbeat(
        machine_.members()[static_cast<size_t>(rank)].member.incarnation,
        progress.waiting);
    if (around_.sabotage == MembershipSabotage::kDropsHeartbeats && rank == 0) {
      return;
    }
    machine_.NoteProgress(rank, progress, now());
  });
}

void MembershipCoordinator::Detach(uint64_t attachment) {
  ChangeAttached(attachment, [&](int rank, server::JobEffects* effects) {
    const server::EventSink& sink =
        machine_.members()[static_cast<size_t>(rank)].sink;
    referee_.OnDetached(StreamOf(sink));
    machine_.Detach(rank, now(), effects);
  });
}

void MembershipCoordinator::NotePeerBroken(uint64_t attachment, int peer) {
  ChangeAttached(attachment, [&](int rank, server::JobEffects*) {
    if (peer >= static_cast<int>(machine_.members().size())) return;
    if (peer != rank) referee_.OnPeerBroken(peer);
    machine_.NotePeersBroken(rank, {peer}, now());
  });
}

void MembershipCoordinator::NoteFallback(uint64_t attachment,
                                         const std::string& address) {
  ChangeAttached(attachment, [&](int rank, server::JobEffects* effects) {
    if (rank == 0) referee_.OnFallback(address);
    machine_.NoteFallbackCoordinator(rank, address, effects);
  });
}

void MembershipCoordinator::CutOffOthers(uint64_t attachment) {
  ChangeAttached(attachment, [&](int rank, server::JobEffects* effects) {
    machine_.CutOffOthers(rank, absl::CancelledError("attach again"), now(),
                          effects);
  });
}

void MembershipCoordinator::Regroup(const std::string& reason) {
  if (!running() || shut_down_) return;
  schedule::Message decided;
  decided.kind = schedule::Message::Kind::kDecision;
  decided.decision.regroup = reason;
  referee_.OnRegroupSent(true);
  ChangeJob([&](server::JobEffects* effects) {
    machine_.SendMessages({decided}, effects);
  });
}

void MembershipCoordinator::NoteRegroup(bool decided) {
  if (!running() || shut_down_) return;
  referee_.OnRegroupSent(decided);
  ChangeJob([&](server::JobEffects* effects) {
    machine_.NoteRegroup(decided, effects);
  });
}

void MembershipCoordinator::Abort(const std::string& reason) {
  if (!running() || shut_down_) return;
  referee_.OnAbortAsked();
  ChangeJob([&](server::JobEffects* effects) {
    machine_.Abort(absl::AbortedError(reason), now(), effects);
  });
}

void MembershipCoordinator::ChangePlan() {
  if (!running() || shut_down_) return;
  const Generation generation = machine_.generation();
  const schedule::Plan plan = NextPlan();
  store_.Write(
      server::StateBatch().Put(kPlanTable, kJob, absl::StrCat(plan.version)),
      [this, generation, plan](const absl::Status& status) {
        if (!status.ok() || !machine_.Runs(generation)) return;
        referee_.OnPlan(plan.version);
        machine_.NotePlan(plan);
      });
}

void MembershipCoordinator::NoteSigns(
    const std::vector<Incarnation>& received) {
  if (!running() || shut_down_) return;
  std::vector<absl::Time> signs(machine_.members().size(),
                                absl::InfinitePast());
  for (const Incarnation incarnation : received) {
    const server::MemberRecord* const record =
        machine_.members().Find(incarnation);
    if (record == nullptr) continue;
    signs[static_cast<size_t>(record->member.rank)] = now();
    referee_.OnSign(incarnation, now());
  }
  machine_.NoteSigns(signs);
}

void MembershipCoordinator::Tick(bool paused) {
  if (around_.sabotage != MembershipSabotage::kStopsLooking) {
    if (paused) referee_.OnTimeoutsRestarted();
    ChangeJob([&](server::JobEffects* effects) {
      machine_.Tick(paused, now(), effects);
    });
  }
  const bool settled = pending_calls_ == 0 && notices_.empty() && !noticing_;
  referee_.OnTick(machine_, settled, dice_.Bits());
}

void MembershipCoordinator::Shutdown() {
  shut_down_ = true;
  referee_.OnStopping();
  ChangeJob([&](server::JobEffects* effects) {
    machine_.Shutdown(absl::UnavailableError("coordinator shuts down"), now(),
                      effects);
  });
}

}  // namespace coxswain::simulation
