#include "client/comm/tcp/lookup.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// How long one question to the store lasts before the thread looks whether it
// is still needed.
constexpr absl::Duration kQuestion = absl::Seconds(1);

absl::StatusOr<TcpPlace> FindPlace(const CommunicatorOptions& options, int peer,
                                   absl::Time end,
                                   const std::atomic<bool>& stop) {
  while (true) {
    const absl::Duration left =
        std::max(end - Clock::Real()->Now(), absl::ZeroDuration());
    const auto value = options.store->Get(PlaceLookup::Key(options, peer),
                                          std::min(left, kQuestion));
    if (value.ok()) return DecodePlace(*value);
    if (!absl::IsDeadlineExceeded(value.status())) return value.status();
    // Who waits for it knows that this rank is missing.
    if (stop.load() || left == absl::ZeroDuration()) return value.status();
  }
}

}  // namespace

std::string PlaceLookup::Key(const CommunicatorOptions& options, int rank) {
  return absl::StrCat("tcp/", options.id, "/", rank);
}

PlaceLookup::PlaceLookup(const CommunicatorOptions& options, absl::Time end,
                         std::shared_ptr<WakeFd> wake) {
  if (options.rank == 0) return;
  std::thread([options, end, wake = std::move(wake), shared = shared_] {
    for (int peer = 0; peer < options.rank && !shared->stop.load(); ++peer) {
      absl::StatusOr<TcpPlace> place =
          FindPlace(options, peer, end, shared->stop);
      const bool ok = place.ok();
      if (absl::IsDeadlineExceeded(place.status())) return;
      {
        MutexLock lock(&shared->mutex);
        shared->found.emplace_back(peer, std::move(place));
      }
      wake->Raise();
      if (!ok) return;
    }
  }).detach();
}

PlaceLookup::~PlaceLookup() { shared_->stop.store(true); }

std::vector<PlaceLookup::Found> PlaceLookup::Take() {
  MutexLock lock(&shared_->mutex);
  return std::exchange(shared_->found, {});
}

}  // namespace coxswain
