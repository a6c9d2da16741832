// The part of the coordinator that carries out effects.
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "schedule/ticket.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership_errors.h"
#include "server/state/cluster_records.h"
#include "tests/simulation/membership_coordinator.h"

namespace coxswain::simulation {
namespace {

using Sabotage = MembershipSabotage;

bool IsAbort(const server::AttachEvent& event) {
  const auto* const sent = std::get_if<server::MembershipEvent>(&event);
  return sent != nullptr && sent->kind == server::MembershipEvent::Kind::kAbort;
}

}  // namespace

struct MembershipCoordinator::Carrier {
  void operator()(server::job_effect::Answer answer) {
    owner->joins_.erase(answer.join_id);
    owner->referee_.OnAnswered(answer.join_id, answer.result);
    Add([owner = owner, answer = std::move(answer)] { owner->Give(answer); });
  }
  void operator()(server::job_effect::Reply reply) {
    Add([reply = std::move(reply)] { reply.callback(reply.status); });
  }
  void operator()(server::job_effect::ReplyWhenSaved reply) {
    Add([owner = owner, failures = reply.failures,
         callback = std::move(reply.callback)] {
      owner->store_.AfterWritten([owner, failures, callback] {
        callback(owner->shut_down_ ? absl::UnavailableError("shut down")
                                   : owner->machine_.CheckSavedSince(failures));
      });
    });
  }
  void operator()(server::job_effect::Send send) {
    if (IsAbort(*send.event) && Sabotages(Sabotage::kSwallowsAbort)) return;
    owner->referee_.OnSent(owner->StreamOf(send.sink), *send.event);
    Add([send = std::move(send)] { send.sink(*send.event); });
  }
  void operator()(server::job_effect::SendMessages send) {
    if (!send.when_written) {
      return Add([send = std::move(send)] { Deliver(send); });
    }
    Add([owner = owner, generation = owner->machine_.generation(),
         saved = owner->Saved(), send = std::move(send)] {
      owner->store_.AfterWritten([owner, generation, saved, send] {
        // Unless what was written before could not be.
        if (saved()) owner->referee_.OnRegroupReceived(generation);
        Deliver(send);
      });
    });
  }
  void operator()(server::job_effect::CloseStream close) {
    owner->attachments_.erase(close.attachment);
    owner->referee_.OnClosed(owner->StreamOf(close.sink), close.status);
    server::MembershipEvent event;
    event.kind = server::MembershipEvent::Kind::kClosed;
    event.status = close.status;
    Add([sink = std::move(close.sink), event = std::move(event)] {
      sink(event);
    });
  }
  void operator()(const server::job_effect::Detached& detached) {
    owner->attachments_.erase(detached.attachment);
  }
  void operator()(const server::job_effect::NotifyBegan& began) {
    owner->referee_.OnBegan(began.begin);
    AddInOrder([owner = owner, generation = began.begin.generation] {
      owner->referee_.OnNoticeBegan(generation);
    });
  }
  void operator()(const server::job_effect::NotifyLeft& left) {
    owner->referee_.OnLeft(left.generation, left.rank);
    if (Sabotages(Sabotage::kHidesLeft)) return;
    AddInOrder([owner = owner, left] {
      owner->referee_.OnNoticeLeft(left.generation, left.rank);
    });
  }
  void operator()(server::job_effect::NotifyRegroupWanted wanted) {
    if (!wanted.reason.empty()) {
      owner->referee_.OnRegroupWanted(wanted.generation);
    }
    AddInOrder([owner = owner, reason = std::move(wanted.reason)] {
      owner->around_.on_regroup_wanted(reason);
    });
  }
  void operator()(server::job_effect::NotifyCatchUpWanted wanted) {
    for (const schedule::Newcomer& newcomer : wanted.newcomers) {
      owner->referee_.OnCatchUpWanted(wanted.generation,
                                      Incarnation(newcomer.incarnation));
    }
    AddInOrder([owner = owner, newcomers = std::move(wanted.newcomers)] {
      for (const schedule::Newcomer& newcomer : newcomers) {
        owner->around_.on_catch_up_wanted(Incarnation(newcomer.incarnation));
      }
    });
  }
  void operator()(const server::job_effect::NotifyEnded& ended) {
    owner->referee_.OnEnded(ended.generation, ended.status);
    AddInOrder([owner = owner, generation = ended.generation] {
      owner->referee_.OnNoticeEnded(generation);
    });
  }
  void operator()(server::job_effect::Announce announce) {
    std::vector<server::job_effect::Answer>& answers = announce.answers;
    if (Sabotages(Sabotage::kSwallowsAnswer)) answers.pop_back();
    if (answers.size() > 1 && Sabotages(Sabotage::kMovesRank)) {
      answers[0].result->rank = answers[1].result->rank;
    }
    for (const server::job_effect::Answer& answer : answers) {
      owner->joins_.erase(answer.join_id);
      owner->referee_.OnAnswered(answer.join_id, answer.result);
    }
    if (Sabotages(Sabotage::kAnnouncesFirst)) {
      for (const server::job_effect::Answer& answer : answers) {
        owner->Give(answer);
      }
    }
    AddInOrder([owner = owner, announce = std::move(announce)] {
      for (const server::job_effect::Answer& answer : announce.answers) {
        owner->Give(answer);
      }
      owner->ChangeJob([&](server::JobEffects* effects) {
        owner->machine_.Announced(announce.generation, effects);
      });
      owner->referee_.OnAnnounced(announce.generation);
    });
  }
  void operator()(server::job_effect::Save save) {
    owner->store_.Write(std::move(save.batch),
                        [owner = owner](const absl::Status& status) {
                          if (status.ok()) return;
                          ++owner->save_failures_;
                          owner->machine_.NoteUnsaved(owner->now());
                        });
  }
  void operator()(server::job_effect::WriteDeparture departure) {
    if (Sabotages(Sabotage::kLosesWrite)) owner->store_.LoseDeparture();
    if (Sabotages(Sabotage::kRepliesEarly)) {
      owner->store_.Write(std::move(departure.batch),
                          [](const absl::Status&) {});
      return Add([owner = owner, written = std::move(departure.written)] {
        owner->TakeDeparture(written);
      });
    }
    owner->store_.Write(
        std::move(departure.batch),
        [owner = owner,
         written = std::move(departure.written)](const absl::Status& status) {
          if (status.ok()) return owner->TakeDeparture(written);
          ++owner->save_failures_;
          owner->machine_.NoteUnsaved(owner->now());
          written.leave.callback(server::NotWrittenError(status));
        });
  }
  void operator()(server::job_effect::Commit commit) {
    owner->referee_.OnCommit(*commit.commit);
    if (Sabotages(Sabotage::kBeginsUnwritten)) {
      return AddInOrder(
          [owner = owner] { owner->FinishCommit(owner->NextPlan()); });
    }
    AddInOrder([owner = owner, commit = std::move(commit.commit)] {
      owner->WriteGeneration(commit);
    });
  }
  void operator()(const server::job_effect::Discard& discard) {
    owner->Discard(discard.tables);
  }

  void Add(std::function<void()> call) { calls->push_back(std::move(call)); }
  // After all notices so far.
  void AddInOrder(std::function<void()> call) {
    owner->notices_.push_back(std::move(call));
    Add([owner = owner] { owner->RunNotices(); });
  }
  // Once.
  bool Sabotages(Sabotage sabotage) {
    if (owner->around_.sabotage != sabotage) return false;
    return !std::exchange(owner->sabotaged_, true);
  }

  MembershipCoordinator* const owner;
  Calls* const calls;
};

int MembershipCoordinator::StreamOf(const server::EventSink& sink) {
  const auto* const known = sink.target<StreamSink>();
  COXSWAIN_CHECK(known != nullptr);
  return known->stream;
}

void MembershipCoordinator::CarryOut(server::JobEffects effects, Calls* calls) {
  Carrier carrier{this, calls};
  for (server::JobEffect& effect : effects) {
    std::visit(carrier, std::move(effect));
  }
}

void MembershipCoordinator::Give(const server::job_effect::Answer& answer) {
  if (answer.result.ok()) referee_.OnGiven(*answer.result);
  answer.callback(answer.result);
}

void MembershipCoordinator::Deliver(
    const server::job_effect::SendMessages& send) {
  for (const schedule::Message& message : send.messages) {
    const server::AttachEvent event = message;
    for (const server::EventSink& sink : send.sinks) {
      if (sink != nullptr) sink(event);
    }
  }
}

void MembershipCoordinator::TakeDeparture(
    const server::job_input::DepartureWritten& written) {
  const server::job_input::Leave& leave = written.leave;
  referee_.OnDeparture(leave.generation, leave.incarnation, leave.notice);
  ChangeJob([&](server::JobEffects* effects) {
    machine_.Take(written, now(), effects);
  });
}

schedule::Plan MembershipCoordinator::NextPlan() {
  return PlanOf(++newest_plan_);
}

void MembershipCoordinator::WriteGeneration(
    const std::shared_ptr<server::RunCommit>& commit) {
  if (shut_down_) return;
  const absl::Status bounds =
      server::CheckManifestBounds(*commit->run.manifest);
  COXSWAIN_CHECK(bounds.ok());
  commit->tables = server::EncodeTables(commit->run);
  WriteNextTable(commit);
}

void MembershipCoordinator::WriteNextTable(
    const std::shared_ptr<server::RunCommit>& commit) {
  if (shut_down_) return;
  server::StateBatch batch = std::move(commit->tables.front());
  commit->tables.pop_front();
  server::PutNextGeneration(next_generation_, &batch);
  store_.Write(std::move(batch), [this, commit](const absl::Status& written) {
    if (!written.ok()) return FinishCommit(written);
    if (!commit->tables.empty()) return WriteNextTable(commit);
    WritePlan(commit);
  });
}

void MembershipCoordinator::WritePlan(
    const std::shared_ptr<server::RunCommit>& commit) {
  if (shut_down_) return;
  const schedule::Plan plan = NextPlan();
  server::StateBatch batch = std::move(commit->start.batch);
  batch.Put(kPlanTable, machine_.name(), absl::StrCat(plan.version));
  store_.Write(std::move(batch), [this, plan](const absl::Status& written) {
    if (!written.ok()) return FinishCommit(written);
    FinishCommit(plan);
  });
}

void MembershipCoordinator::FinishCommit(
    const absl::StatusOr<schedule::Plan>& plan) {
  if (shut_down_) return;
  if (!plan.ok()) referee_.OnCommitFailed();
  ChangeJob([&](server::JobEffects* effects) {
    machine_.FinishCommit(plan, now(), effects);
  });
}

void MembershipCoordinator::Discard(const server::StateBatch& tables) {
  if (tables.empty()) return;
  store_.Write(tables, [](const absl::Status&) {});
}

}  // namespace coxswain::simulation
