#include "client/resume/session_checkpoints.h"

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// Where rank 0 publishes which checkpoint is the newest.
constexpr char kNewestKey[] = "checkpoint/newest";
// In the place of an id, none of which begins so.
constexpr char kNotListed[] = "!";
// Ranks come to the first checkpoint, and meet an error of a save, at different
// times.
constexpr absl::Duration kConnectTimeout = absl::Minutes(5);
// A session takes care of groups of such names: see SessionGroups.
constexpr char kGroup[] = "checkpoint/";

}  // namespace

AsyncCheckpoint::Options SaverOf(Session& session) {
  AsyncCheckpoint::Options saver;
  saver.rank = session.rank();
  saver.world_size = session.world_size();
  const auto number = std::make_shared<ConnectionNumber>(
      session.rank(), &session.store(), kConnectTimeout);
  saver.connect =
      [&session, number](int) -> absl::StatusOr<std::shared_ptr<Communicator>> {
    COXSWAIN_ASSIGN_OR_RETURN(const int64_t next, number->Next());
    std::vector<int> ranks(static_cast<size_t>(session.world_size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    auto group = session.CreateGroup(absl::StrCat(kGroup, next), ranks);
    if (!group.ok()) {
      number->GiveUp();
      return group.status();
    }
    Communicator* const communicator = &(*group)->communicator();
    return std::shared_ptr<Communicator>(*std::move(group), communicator);
  };
  return saver;
}

absl::StatusOr<std::string> AgreeOnNewest(Session& session, int64_t* number) {
  const std::string key =
      *number == 0 ? kNewestKey : absl::StrCat(kNewestKey, "/", *number);
  if (session.rank() != 0) {
    COXSWAIN_ASSIGN_OR_RETURN(std::string id,
                              session.store().Get(key, kConnectTimeout));
    ++*number;
    if (id == kNotListed) {
      return absl::UnavailableError(
          "rank 0 could not list the checkpoints of this job; its error has "
          "why");
    }
    if (!id.empty()) return id;
    return absl::NotFoundError("this job has no complete checkpoint");
  }
  const auto list = session.checkpoints().List();
  const bool any = list.ok() && !list->empty();
  std::string published = any ? list->front().id : "";
  // Not "none", with which the others would begin anew.
  if (!list.ok()) published = kNotListed;
  COXSWAIN_RETURN_IF_ERROR(session.store().Set(key, published));
  ++*number;
  COXSWAIN_RETURN_IF_ERROR(list.status());
  if (any) return list->front().id;
  return absl::NotFoundError("this job has no complete checkpoint");
}

}  // namespace coxswain
