// The part of Membership that lets the ranks find their stand-in, and sends
// them to say again where they are.

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/membership/membership.h"

namespace coxswain::server {
namespace {

bool IsHostPort(absl::string_view text, size_t max_bytes) {
  const size_t colon = text.rfind(':');
  int port = 0;
  return text.size() <= max_bytes && colon != absl::string_view::npos &&
         colon > 0 && absl::SimpleAtoi(text.substr(colon + 1), &port) &&
         port > 0 && port < 65536;
}

}  // namespace

absl::Status Membership::CheckStandIn(absl::string_view address) const {
  if (address.empty() ||
      IsHostPort(address, static_cast<size_t>(options_.max_name_bytes))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("hello.stand_in must be empty or host:port of at most ",
                   options_.max_name_bytes, " bytes; it has ", address.size()));
}

absl::Status Membership::NoteStandIn(uint64_t attachment,
                                     absl::string_view address) {
  COXSWAIN_RETURN_IF_ERROR(CheckStandIn(address));
  MembershipEvent event;
  event.kind = MembershipEvent::Kind::kStandIn;
  std::vector<EventSink> sinks;
  {
    MutexLock lock(&mutex_);
    const auto found = attachments_.find(attachment);
    if (found == attachments_.end()) return absl::OkStatus();
    auto& run = jobs_[found->second.first].run;
    const int rank = found->second.second;
    if (rank == 0) run.stand_in = std::string(address);
    // An empty address says that nobody stands in any more.
    const bool gone =
        rank != 0 && run.members[0].liveness.state == MemberState::kLeft;
    if (run.stand_in.empty() && !gone) return absl::OkStatus();
    if (!gone) event.address = run.stand_in;
    for (const MemberRecord& record : run.members) {
      const bool told =
          rank == 0 ? record.member.rank != 0 : record.member.rank == rank;
      if (told && record.sink != nullptr) sinks.push_back(record.sink);
    }
  }
  for (const EventSink& sink : sinks) sink(event);
  return absl::OkStatus();
}

uint64_t Membership::NewestAttachment() const {
  MutexLock lock(&mutex_);
  return next_handle_ - 1;
}

void Membership::CutOffOthers(absl::string_view job, Generation generation,
                              int rank, const absl::Status& reason) {
  Calls calls;
  {
    MutexLock lock(&mutex_);
    auto* const running = FindRunningLocked(job, generation);
    if (running == nullptr) return;
    MemberTable& members = running->run.members;
    for (size_t other = 0; other < members.size(); ++other) {
      MemberRecord& record = members[other];
      if (static_cast<int>(other) == rank || record.attachment == 0) continue;
      CloseStreamLocked(reason, &record, &calls);
      members.SetState(&record, MemberState::kDetached);
      record.liveness.detached_at = rooms_.clock->Now();
    }
  }
  RunAll(calls);
}

}  // namespace coxswain::server
