// The part of Membership that carries out what its jobs want done.

#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "base/logging.h"
#include "schedule/plan.h"
#include "server/membership/manifest_check.h"
#include "server/membership/membership.h"
#include "server/membership/membership_errors.h"
#include "server/membership/run_commit.h"
#include "server/state/cluster_records.h"

namespace coxswain::server {
namespace {

// Tables whose removal failed are tried again after this time.
constexpr absl::Duration kDropInterval = absl::Seconds(1);
// Tables that are dropped at once, and that are remembered for it.
constexpr size_t kGarbageInBatch = 100;
constexpr size_t kMaxGarbage = 4096;
static_assert(kGarbageInBatch <= StateStore::kMaxWrites);

void Deliver(const job_effect::SendMessages& send) {
  for (const schedule::Message& message : send.messages) {
    const AttachEvent event = message;
    for (size_t rank = 0; rank < send.sinks.size(); ++rank) {
      const bool meant = message.rank == schedule::Message::kAllRanks ||
                         message.rank == static_cast<int>(rank);
      if (meant && send.sinks[rank] != nullptr) send.sinks[rank](event);
    }
  }
}

void Deliver(const job_effect::CloseStream& close) {
  MembershipEvent event;
  event.kind = MembershipEvent::Kind::kClosed;
  event.status = close.status;
  close.sink(event);
}

}  // namespace

void Membership::Give(const job_effect::Answer& answer) {
  if (!answer.result.ok() && answer.on_refused != nullptr) {
    answer.on_refused(answer.result.status());
  }
  answer.callback(answer.result);
}

// Carries out the effects of one job, with the lock held.
struct Membership::Carrier {
  void operator()(job_effect::Answer answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mutex_) {
    registry->joins_.erase(answer.join_id);
    Add([answer = std::move(answer)] { Give(answer); });
  }
  void operator()(job_effect::Reply reply) {
    Add([reply = std::move(reply)] { reply.callback(reply.status); });
  }
  void operator()(job_effect::ReplyWhenSaved reply) {
    Add([registry = registry, name = job->machine.name(),
         failures = reply.failures, callback = std::move(reply.callback)] {
      registry->ReplyWhenSaved(name, failures, callback);
    });
  }
  void operator()(job_effect::Send send) {
    Add([send = std::move(send)] { send.sink(*send.event); });
  }
  void operator()(job_effect::SendMessages send) {
    if (!send.when_written) {
      return Add([send = std::move(send)] { Deliver(send); });
    }
    Add([store = registry->deps_.store, send = std::move(send)] {
      store->AfterWritten([send] { Deliver(send); });
    });
  }
  void operator()(job_effect::CloseStream close)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mutex_) {
    registry->attachments_.erase(close.attachment);
    Add([close = std::move(close)] { Deliver(close); });
  }
  void operator()(const job_effect::Detached& detached)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mutex_) {
    registry->attachments_.erase(detached.attachment);
  }
  void operator()(job_effect::NotifyBegan began) {
    Notify([begin = std::move(began.begin)](GenerationObserver* observer) {
      observer->OnGenerationBegan(begin);
    });
  }
  void operator()(job_effect::NotifyLeft left) {
    Notify([name = job->machine.name(), left](GenerationObserver* observer) {
      observer->OnMemberLeft(name, left.generation, left.rank);
    });
  }
  void operator()(job_effect::NotifyRegroupWanted wanted) {
    Notify([name = job->machine.name(),
            wanted = std::move(wanted)](GenerationObserver* observer) {
      observer->OnRegroupWanted(name, wanted.generation, wanted.reason);
    });
  }
  void operator()(job_effect::NotifyCatchUpWanted wanted) {
    Notify([name = job->machine.name(),
            wanted = std::move(wanted)](GenerationObserver* observer) {
      observer->OnCatchUpWanted(name, wanted.generation, wanted.newcomers);
    });
  }
  void operator()(job_effect::NotifyEnded ended) {
    Notify([name = job->machine.name(),
            ended = std::move(ended)](GenerationObserver* observer) {
      observer->OnGenerationEnded(name, ended.generation, ended.status);
    });
  }
  void operator()(job_effect::Announce announce)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mutex_) {
    for (const job_effect::Answer& answer : announce.answers) {
      registry->joins_.erase(answer.join_id);
    }
    AddInOrder([registry = registry, name = job->machine.name(),
                announce = std::move(announce)] {
      for (const job_effect::Answer& answer : announce.answers) Give(answer);
      registry->ChangeJob(name, [&](auto* announced, auto, auto* effects) {
        announced->Announced(announce.generation, effects);
      });
    });
  }
  void operator()(job_effect::Save save)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mutex_) {
    registry->WriteLocked(
        std::move(save.batch),
        [registry = registry,
         name = job->machine.name()](const absl::Status& status) {
          if (!status.ok()) registry->NoteUnsaved(name, status);
        },
        calls);
  }
  void operator()(job_effect::WriteDeparture departure)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mutex_) {
    registry->WriteLocked(
        std::move(departure.batch),
        [registry = registry, name = job->machine.name(),
         written = std::move(departure.written)](const absl::Status& status) {
          registry->FinishDeparture(name, written, status);
        },
        calls);
  }
  // The plan of the generation follows from what the observers, that of the
  // plans among them, have learned of the one before.
  void operator()(job_effect::Commit commit) {
    AddInOrder([registry = registry, commit = std::move(commit.commit)] {
      registry->WriteGeneration(commit);
    });
  }
  void operator()(const job_effect::Discard& discard)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry->mutex_) {
    registry->DiscardLocked(discard.tables);
  }

  void Add(std::function<void()> call) { calls->push_back(std::move(call)); }
  // After all notices of the job so far.
  void AddInOrder(std::function<void()> call) {
    job->notices->Add(std::move(call));
    Add([notices = job->notices] { notices->Run(); });
  }
  void Notify(std::function<void(GenerationObserver*)> notice) {
    AddInOrder([observers = registry->observers_, notice = std::move(notice)] {
      for (GenerationObserver* const observer : observers) notice(observer);
    });
  }

  Membership* const registry;
  Job* const job;
  Calls* const calls;
};

void Membership::CarryOutLocked(JobEffects effects, Job* job, Calls* calls) {
  Carrier carrier{this, job, calls};
  for (JobEffect& effect : effects) std::visit(carrier, std::move(effect));
}

void Membership::WriteLocked(StateBatch batch, StateWriter::Done done,
                             Calls* calls) {
  // A writer may call back before Write() returns, while the lock is held.
  struct Landing {
    Mutex mutex;
    bool writing = true;
    std::optional<absl::Status> status;
  };
  const auto landing = std::make_shared<Landing>();
  deps_.store->Write(std::move(batch),
                     [landing, done](const absl::Status& status) {
                       {
                         MutexLock lock(&landing->mutex);
                         if (landing->writing) {
                           landing->status = status;
                           return;
                         }
                       }
                       done(status);
                     });
  MutexLock lock(&landing->mutex);
  landing->writing = false;
  if (!landing->status.has_value()) return;
  calls->push_back(
      [done = std::move(done), status = *landing->status] { done(status); });
}

void Membership::NoteUnsaved(const std::string& job,
                             const absl::Status& status) {
  LogError("job_not_saved", {{"job", job}, {"error", status.message()}});
  ChangeJob(job,
            [](auto* unsaved, auto now, auto*) { unsaved->NoteUnsaved(now); });
}

void Membership::ReplyWhenSaved(const std::string& job,
                                std::optional<int64_t> failures,
                                const StatusCallback& callback) {
  deps_.store->AfterWritten(
      [this, job, failures, callback] { callback(CheckSaved(job, failures)); });
}

void Membership::FinishDeparture(const std::string& job,
                                 const job_input::DepartureWritten& written,
                                 const absl::Status& status) {
  const StatusCallback& callback = written.leave.callback;
  if (!status.ok()) {
    LogError("departure_not_saved",
             {{"job", job}, {"error", status.message()}});
    // A member that failed counts as lost all the same.
    NoteUnsaved(job, status);
    return callback(NotWrittenError(status));
  }
  // It may be the last that the destructor waits for.
  if (stops()) return callback(absl::OkStatus());
  const bool known = ChangeJob(job, [&](auto* left, auto now, auto* effects) {
    left->Take(written, now, effects);
  });
  if (!known) callback(absl::OkStatus());
}

void Membership::WriteGeneration(const std::shared_ptr<RunCommit>& commit) {
  const absl::Status bounds = CheckManifestBounds(*commit->run.manifest);
  if (!bounds.ok()) return FinishCommit(commit->job, bounds);
  commit->tables = EncodeTables(commit->run);
  WriteNextTable(commit);
}

void Membership::WriteNextTable(const std::shared_ptr<RunCommit>& commit) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    if (shut_down_) return;
    StateBatch batch = std::move(commit->tables.front());
    commit->tables.pop_front();
    // Durable before the number is used. Jobs commit side by side: as it is
    // read and handed to the writer under one lock, the highest comes last.
    PutNextGeneration(next_generation_, &batch);
    WriteLocked(
        std::move(batch),
        [this, commit](const absl::Status& written) {
          NoteTableWritten(commit, written);
        },
        &calls);
  }
  RunAll(calls);
}

void Membership::NoteTableWritten(const std::shared_ptr<RunCommit>& commit,
                                  const absl::Status& written) {
  if (!written.ok()) return FinishCommit(commit->job, written);
  if (!commit->tables.empty()) return WriteNextTable(commit);
  // Waits for one small commit, and so do the calls that the writer would
  // answer next.
  FinishCommit(commit->job,
               deps_.plans->BeginGeneration(std::move(commit->start)));
}

void Membership::FinishCommit(const std::string& job,
                              absl::StatusOr<schedule::Plan> plan) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    // Its workers have been answered, and ask the next coordinator.
    if (shut_down_) return;
    JobEffects effects;
    Job* const committed = &jobs_.at(job);
    committed->machine.FinishCommit(std::move(plan), deps_.clock->Now(),
                                    &effects);
    CarryOutLocked(std::move(effects), committed, &calls);
  }
  RunAll(calls);
}

void Membership::DiscardLocked(const StateBatch& tables) {
  for (const StateBatch::Write& write : tables.writes()) {
    if (garbage_.size() == kMaxGarbage) return;
    garbage_.push_back(write.table);
  }
}

void Membership::DropGarbageLocked(Calls* calls) {
  if (garbage_.empty()) return;
  StateBatch piece;
  while (!garbage_.empty() && piece.writes().size() < kGarbageInBatch) {
    piece.DeleteTable(garbage_.front());
    garbage_.pop_front();
  }
  WriteLocked(
      piece,
      [this, piece](const absl::Status& status) {
        if (status.ok()) return;
        LogWarning("tables_not_dropped", {{"error", status.message()}});
        MutexLock lock(&mutex_);
        DiscardLocked(piece);
        drop_garbage_at_ = deps_.clock->Now() + kDropInterval;
      },
      calls);
}

}  // namespace coxswain::server
