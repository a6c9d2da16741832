#include "client/comm/tcp/data_paths.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/processors.h"

namespace coxswain {
namespace {

// Long enough for a peer that reduces a few kilobytes and for the way there and
// back within a host; short against what a scheduler gives a thread.
constexpr absl::Duration kPathSpin = absl::Microseconds(50);

absl::Duration ChooseSpin(int ranks_here) {
  return ProcessorsOfSiblings() >= ranks_here ? kPathSpin
                                              : absl::ZeroDuration();
}

}  // namespace

DataPaths::DataPaths(std::vector<std::vector<TcpStream>> streams,
                     int ranks_here, std::shared_ptr<ByteCounter> sent,
                     Explainer explain)
    : streams_(std::move(streams)),
      spin_(ChooseSpin(ranks_here)),
      sent_(std::move(sent)),
      explain_(std::move(explain)),
      put_back_(streams_.size()) {
  for (auto& stripes : streams_) {
    for (TcpStream& one : stripes) one.ReadAhead();
  }
}

absl::StatusOr<int64_t> DataPaths::Send(int peer, int stripe,
                                        const iovec* parts, int count) {
  auto sent = stream(peer, stripe).Send(parts, count);
  if (sent.ok()) sent_->Add(*sent);
  return sent;
}

absl::StatusOr<int64_t> DataPaths::Receive(int peer, int stripe, void* data,
                                           int64_t bytes) {
  if (stripe == 0 && has_put_back(peer)) {
    std::string& early = put_back_[static_cast<size_t>(peer)];
    const size_t taken = std::min(early.size(), static_cast<size_t>(bytes));
    std::memcpy(data, early.data(), taken);
    early.erase(0, taken);
    return static_cast<int64_t>(taken);
  }
  return stream(peer, stripe).Receive(data, bytes);
}

void DataPaths::PutBack(int peer, absl::string_view bytes) {
  std::string& early = put_back_[static_cast<size_t>(peer)];
  early.insert(0, bytes.data(), bytes.size());
}

DataPaths::Outcome DataPaths::Await(std::vector<pollfd>* entries,
                                    absl::Time until) {
  if (spins_ && spin_ > absl::ZeroDuration()) {
    const absl::Time spin_end = std::min(until, Clock::Real()->Now() + spin_);
    do {
      if (stopped()) return Outcome::kStopped;
      if (poll(entries->data(), entries->size(), 0) > 0) return Outcome::kReady;
    } while (Clock::Real()->Now() < spin_end);
  }
  entries->push_back({wake_.get(), POLLIN, 0});
  const int ready = PollUntil(entries, until);
  entries->pop_back();
  if (stopped()) return Outcome::kStopped;
  if (ready > 0) return Outcome::kReady;
  return Clock::Real()->Now() >= until ? Outcome::kLate : Outcome::kReady;
}

void DataPaths::Stop() {
  if (stopped_.exchange(true)) return;
  wake_.Raise();
  for (const auto& stripes : streams_) {
    for (const TcpStream& one : stripes) one.EndSending();
  }
}

}  // namespace coxswain
