#include "client/comm/group_options.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"

namespace coxswain {
namespace {

// The list of ranks in an id: a hash where the list is long, as the keys of the
// store have a limit.
std::string NameOf(const std::vector<int>& ranks) {
  constexpr size_t kLong = 64;
  std::string text = absl::StrJoin(ranks, ",");
  if (text.size() <= kLong) return text;
  return absl::StrCat(ranks.size(), "-ranks-", absl::Hex(StableHash(text)));
}

}  // namespace

absl::Status CheckGroupOptions(const CommunicatorOptions& options,
                               absl::string_view backend) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("communicator '", options.id, "': rank ", options.rank,
                     " is not a rank of a group of ", options.size));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "communicator '", options.id, "': the timeout ",
        absl::FormatDuration(options.timeout), " must be greater than zero"));
  }
  if (options.store == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("communicator '", options.id, "': the ", backend,
                     " back end needs a rendezvous store"));
  }
  return absl::OkStatus();
}

CommunicatorOptions SplitOptions(const CommunicatorOptions& parent,
                                 const std::vector<int>& ranks,
                                 int64_t number) {
  CommunicatorOptions options = parent;
  // The parent's ranks were sure to come at once; these come when they do.
  options.connect_timeout = absl::InfiniteDuration();
  const auto self = std::find(ranks.begin(), ranks.end(), parent.rank);
  options.rank = static_cast<int>(self - ranks.begin());
  options.size = static_cast<int>(ranks.size());
  options.id = absl::StrCat(parent.id, "/", NameOf(ranks), "#", number);
  return options;
}

}  // namespace coxswain
