#include "client/session/session_members.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/session_wire.h"

namespace coxswain {

SessionMembers::SessionMembers(const v1::JoinResponse& joined,
                               std::shared_ptr<Membership> membership)
    : world_size_(joined.world_size()), membership_(std::move(membership)) {
  if (joined.members_size() != world_size_) return;
  AppendMembers(joined.members(), &known_);
}

absl::StatusOr<std::vector<JobMember>> SessionMembers::All() {
  {
    MutexLock lock(&mutex_);
    if (!known_.empty()) return known_;
  }
  // Two threads may both ask, and hear the same.
  COXSWAIN_ASSIGN_OR_RETURN(std::vector<JobMember> members, Ask());
  MutexLock lock(&mutex_);
  known_ = members;
  return members;
}

absl::StatusOr<std::vector<JobMember>> SessionMembers::Ask() const {
  std::vector<JobMember> members;
  while (static_cast<int>(members.size()) < world_size_) {
    const int first = static_cast<int>(members.size());
    v1::MembersRequest request;
    *request.mutable_fence() = membership_->fence();
    request.set_first_rank(first);
    request.set_count(world_size_ - first);
    const auto page = membership_->stub().Members(request, membership_->Call());
    if (!page.ok()) return membership_->Outcome(page.status());
    if (page->members().empty() || page->members(0).rank() != first) {
      return absl::InternalError(
          absl::StrCat("the coordinator at ", membership_->stub().address(),
                       " was asked for the members from rank ", first, " to ",
                       world_size_ - 1, " and answered with others"));
    }
    AppendMembers(page->members(), &members);
  }
  return members;
}

}  // namespace coxswain
