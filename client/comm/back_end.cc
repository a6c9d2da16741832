#include "client/comm/back_end.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "base/random.h"

namespace coxswain {
namespace {

// Returns the list of ranks in an id: a hash where the list is long, as the
// keys of the store have a limit.
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

absl::Status SocketError(absl::string_view what, int error) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  switch (error) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
    case ETOOMANYREFS:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status CheckOnHost(const Communicator& comm, const Span& span) {
  if (span.device.kind == Device::Kind::kCpu) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the ", comm.backend(),
                   " back end moves CPU memory, and this is on a GPU"));
}

CommunicatorOptions SplitOptions(const CommunicatorOptions& parent,
                                 const std::vector<int>& ranks,
                                 int64_t number) {
  CommunicatorOptions options = parent;
  options.measures_links = false;
  // The parent's ranks were sure to come at once; these come when they do.
  options.connect_timeout = absl::InfiniteDuration();
  const auto self = std::find(ranks.begin(), ranks.end(), parent.rank);
  options.rank = static_cast<int>(self - ranks.begin());
  options.size = static_cast<int>(ranks.size());
  options.id = absl::StrCat(parent.id, "/", NameOf(ranks), "#", number);
  return options;
}

// What the link shares with a callback that may outlive it.
struct SplitLink::Target {
  Mutex mutex;
  // Null once the link is gone.
  std::function<void(absl::string_view)> abort ABSL_GUARDED_BY(mutex);
};

SplitLink::SplitLink(std::shared_ptr<CancelSignal> parent,
                     std::function<void(absl::string_view reason)> abort)
    : parent_(std::move(parent)), target_(std::make_shared<Target>()) {
  {
    MutexLock lock(&target_->mutex);
    target_->abort = std::move(abort);
  }
  id_ = parent_->OnRaise([target = target_, signal = std::weak_ptr(parent_)] {
    const auto raised = signal.lock();
    const absl::Status why =
        raised == nullptr ? absl::OkStatus() : raised->status();
    MutexLock lock(&target->mutex);
    if (target->abort == nullptr) return;
    target->abort(absl::StrCat("the communicator it was split off ended: ",
                               why.message()));
  });
}

SplitLink::~SplitLink() {
  parent_->Forget(id_);
  MutexLock lock(&target_->mutex);
  target_->abort = nullptr;
}

}  // namespace coxswain
