#include "server/membership/member_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace coxswain::server {
namespace {

// Returns whether only processes on the same host can reach this address.
bool IsLoopback(absl::string_view address) {
  return address == "localhost" || address == "::1" ||
         absl::StartsWith(address, "127.");
}

int FindUnreachable(const std::vector<Member>& members) {
  const auto elsewhere = [&members](const Member& member) {
    return member.host != members.front().host;
  };
  const auto local = [](const Member& member) {
    return IsLoopback(member.address);
  };
  if (std::none_of(members.begin(), members.end(), elsewhere)) return -1;
  const auto found = std::find_if(members.begin(), members.end(), local);
  return found == members.end() ? -1 : found->rank;
}

}  // namespace

MemberTable::MemberTable(std::vector<MemberRecord> records)
    : records_(std::move(records)) {
  auto list = std::make_shared<std::vector<Member>>();
  list->reserve(records_.size());
  for (size_t rank = 0; rank < records_.size(); ++rank) {
    const MemberRecord& record = records_[rank];
    list->push_back(record.member);
    by_incarnation_.emplace(record.member.incarnation, rank);
    by_identity_.emplace(record.member.identity, rank);
    if (IsLive(record.liveness.state)) ++live_;
  }
  unreachable_ = FindUnreachable(*list);
  list_ = std::move(list);
}

const MemberRecord* MemberTable::Find(Incarnation incarnation) const {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : &records_[found->second];
}

MemberRecord* MemberTable::Find(Incarnation incarnation) {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : &records_[found->second];
}

const MemberRecord* MemberTable::Find(const WorkerIdentity& identity) const {
  const auto found = by_identity_.find(identity);
  return found == by_identity_.end() ? nullptr : &records_[found->second];
}

MemberRecord* MemberTable::Find(const WorkerIdentity& identity) {
  const auto found = by_identity_.find(identity);
  return found == by_identity_.end() ? nullptr : &records_[found->second];
}

void MemberTable::SetState(MemberRecord* record, MemberState state) {
  const bool was_live = IsLive(record->liveness.state);
  record->liveness.state = state;
  live_ += (IsLive(state) ? 1 : 0) - (was_live ? 1 : 0);
}

}  // namespace coxswain::server
