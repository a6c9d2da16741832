// The part of JobMembership that is about attached workers.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/membership/job_membership.h"
#include "server/membership/membership_errors.h"

namespace coxswain::server {
namespace {

// What a worker waits for, in a few words: errors repeat it for several ranks.
constexpr size_t kMaxActivityBytes = 128;
// Of one newcomer, in the log. An honest one gives up after four.
constexpr int kMaxDamageReports = 8;

using schedule::Message;

// By rank; empty where none of the messages is for it, or it is not attached.
std::vector<EventSink> SinksFor(const std::vector<Message>& messages,
                                const MemberTable& members) {
  std::vector<EventSink> sinks(members.size());
  for (const Message& message : messages) {
    const auto rank = static_cast<size_t>(message.rank);
    if (rank < sinks.size()) sinks[rank] = members[rank].sink;
    if (message.rank != Message::kAllRanks) continue;
    for (size_t i = 0; i < sinks.size(); ++i) sinks[i] = members[i].sink;
    break;
  }
  return sinks;
}

}  // namespace

absl::StatusOr<int> JobMembership::Attach(Generation generation,
                                          Incarnation incarnation,
                                          uint64_t attachment, EventSink sink,
                                          absl::Time now, JobEffects* effects) {
  MemberTable& members = job_.run.members;
  const auto admitted = Admit(generation, incarnation);
  if (!admitted.ok()) {
    if (generation == job_.run.generation) NoteSign(incarnation, now);
    return admitted.status();
  }
  MemberRecord& record = members[(*admitted)->member.rank];
  CloseStream(
      absl::CancelledError("a later Attach of the same worker took this "
                           "one's place"),
      &record, effects);
  record.attachment = attachment;
  record.sink = std::move(sink);
  members.SetState(&record, MemberState::kAttached);
  record.liveness.attached_this_term = true;
  record.liveness.broken_at = absl::InfinitePast();
  record.liveness.last_sign = now;
  if (!record.progressed.has_value()) record.progressed = now;
  RefuseDuplicate(record.member, now, effects);
  LogInfo("attached", {{"job", job_.name},
                       {"generation", generation.value()},
                       {"rank", record.member.rank},
                       {"member", record.member.ToString()}});
  return record.member.rank;
}

void JobMembership::NoteProgress(int rank, const Progress& progress,
                                 absl::Time now) {
  MemberRecord& record = job_.run.members[rank];
  if (!record.progress.SameWork(progress)) record.progressed = now;
  NoteNewcomers(record.member, record.progress, progress.newcomers);
  record.progress = progress;
  record.reported = now;
  if (progress.pipeline.has_value()) {
    record.in_action_since = now - progress.pipeline->in_it;
  }
  record.restored = false;
  record.progress.activity =
      OneLine(Shorten(progress.activity, kMaxActivityBytes));
  record.liveness.last_sign = now;
}

void JobMembership::NoteNewcomers(const Member& member, const Progress& before,
                                  const std::vector<NewcomerReport>& reports) {
  for (const NewcomerReport& report : reports) {
    Waiter* const waiter = job_.waiting.FindMutable(report.incarnation);
    if (waiter == nullptr) continue;
    if (report.settled) {
      waiter->settled_by.insert(member.rank);
    } else {
      waiter->settled_by.erase(member.rank);
    }
    const bool known =
        std::any_of(before.newcomers.begin(), before.newcomers.end(),
                    [&](const NewcomerReport& old) {
                      return old.incarnation == report.incarnation &&
                             old.damage == report.damage;
                    });
    if (report.damage.empty() || known ||
        waiter->damage_reports >= kMaxDamageReports) {
      continue;
    }
    ++waiter->damage_reports;
    LogWarning("piece_damaged", {{"job", job_.name},
                                 {"generation", job_.run.generation.value()},
                                 {"worker", waiter->member.identity.ToString()},
                                 {"reported_by", member.ToString()},
                                 {"reason", OneLine(report.damage)}});
  }
}

void JobMembership::Detach(int rank, absl::Time now, JobEffects* effects) {
  MemberRecord& record = job_.run.members[rank];
  effects->push_back(job_effect::Detached{record.attachment});
  NoteDetached(now, &record);
  LogWarning("detached",
             {{"job", job_.name},
              {"generation", job_.run.generation.value()},
              {"rank", rank},
              {"step", record.progress.step},
              {"member", record.member.ToString()},
              {"grace", absl::FormatDuration(options().reattach_grace)}});
}

void JobMembership::NoteDetached(absl::Time now, MemberRecord* record) {
  job_.run.members.SetState(record, MemberState::kDetached);
  record->attachment = 0;
  record->sink = nullptr;
  record->liveness.detached_at = now;
}

void JobMembership::NotePeersBroken(int rank, const std::vector<int>& ranks,
                                    absl::Time now) {
  MemberTable& members = job_.run.members;
  // No more than there are, however long the list is.
  const size_t known = std::min(ranks.size(), members.size());
  for (size_t i = 0; i < known; ++i) {
    const int peer = ranks[i];
    if (peer < 0 || static_cast<size_t>(peer) >= members.size()) continue;
    if (peer != rank) members[peer].liveness.broken_at = now;
  }
}

void JobMembership::NoteFallbackCoordinator(int rank, absl::string_view address,
                                            JobEffects* effects) {
  RunRecord& run = job_.run;
  if (rank == 0) run.fallback_address = std::string(address);
  // An empty address: there is none any more.
  const bool gone =
      rank != 0 && run.members[0].liveness.state == MemberState::kLeft;
  if (run.fallback_address.empty() && !gone) return;
  MembershipEvent event;
  event.kind = MembershipEvent::Kind::kFallback;
  if (!gone) event.address = run.fallback_address;
  const auto shared = std::make_shared<const AttachEvent>(std::move(event));
  for (const MemberRecord& record : run.members) {
    const bool concerned =
        rank == 0 ? record.member.rank != 0 : record.member.rank == rank;
    if (!concerned || record.sink == nullptr) continue;
    effects->push_back(job_effect::Send{record.sink, shared});
  }
}

void JobMembership::SendMessages(const std::vector<Message>& messages,
                                 JobEffects* effects) {
  job_effect::SendMessages send;
  send.sinks = SinksFor(messages, job_.run.members);
  send.messages = messages;
  const bool regroups = std::any_of(
      messages.begin(), messages.end(),
      [](const Message& message) { return !message.decision.regroup.empty(); });
  if (regroups) {
    if (!std::exchange(job_.run.regroups, true)) Save(StateBatch(), effects);
    // A member that learns of it may leave for good, also at the next
    // coordinator, which must not take that for the end of the work.
    send.when_written = true;
  }
  effects->push_back(std::move(send));
}

void JobMembership::CutOffOthers(int rank, const absl::Status& reason,
                                 absl::Time now, JobEffects* effects) {
  for (MemberRecord& record : job_.run.members) {
    if (record.member.rank == rank || record.attachment == 0) continue;
    CloseStream(reason, &record, effects);
    NoteDetached(now, &record);
  }
}

void JobMembership::NoteRegroup(bool decided, JobEffects* effects) {
  if (std::exchange(job_.run.regroups, decided) == decided) return;
  Save(StateBatch(), effects);
}

void JobMembership::NoteSign(Incarnation incarnation, absl::Time now) {
  // One that waits has shown it by that, and has waited since then.
  if (job_.waiting.Find(incarnation) != nullptr) return;
  MemberRecord* const record = job_.run.members.Find(incarnation);
  if (record != nullptr) record->liveness.last_sign = now;
}

void JobMembership::NoteSigns(const std::vector<absl::Time>& contacts) {
  const size_t known = std::min(contacts.size(), job_.run.members.size());
  for (size_t i = 0; i < known; ++i) {
    absl::Time& last = job_.run.members[i].liveness.last_sign;
    last = std::max(last, contacts[i]);
  }
}

}  // namespace coxswain::server
