#include "client/comm/tcp/opening.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/wire.h"

namespace coxswain {
namespace {

constexpr char kFrameLetters[] = "CXCO";

}  // namespace

Opening::Opening(DataPaths* paths, int rank, std::string name,
                 int64_t max_bytes)
    : paths_(*paths),
      rank_(rank),
      name_(std::move(name)),
      max_bytes_(max_bytes),
      frames_(static_cast<size_t>(paths->size())),
      peers_(static_cast<size_t>(paths->size())) {
  for (int peer = 0; peer < paths_.size(); ++peer) {
    if (peer == rank_) continue;
    PeerOf(peer).memory =
        AllocateHostMemory(kDataAt + static_cast<size_t>(max_bytes_));
    if (PeerOf(peer).memory != nullptr) continue;
    memory_ = absl::ResourceExhaustedError(
        absl::StrCat(name_, ": rank ", rank_, " has no memory for the ",
                     max_bytes_, " bytes that each of its ", paths_.size() - 1,
                     " peers may send with a collective's beginning"));
  }
}

void Opening::Begin(const CollectiveHeader& own, std::vector<Piece> data,
                    std::vector<int64_t> expected) {
  own_ = own;
  data_ = std::move(data);
  expected_ = std::move(expected);
  failed_ = absl::OkStatus();
  if (!memory_.ok()) return;
  const CollectiveHeaderBytes header = Encode(own);
  for (int rank = 0; rank < paths_.size(); ++rank) {
    if (rank == rank_) continue;
    const auto at = static_cast<size_t>(rank);
    char* const frame = frames_[at].data();
    std::copy_n(kFrameLetters, 4, frame);
    PutLittleEndian(static_cast<uint32_t>(data_[at].bytes), frame + 4);
    std::memcpy(frame + 8, header.data(), header.size());
    Peer& peer = peers_[at];
    peer.to_send = static_cast<int64_t>(kFixed) + data_[at].bytes;
    peer.sent = 0;
    peer.to_read = static_cast<int64_t>(kFixed) + expected_[at];
    peer.read = 0;
    peer.decoded = false;
    if (!failed_.ok()) continue;
    failed_ = Write(rank);
    failed_peer_ = rank;
  }
}

bool Opening::done() const {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (static_cast<int>(rank) != rank_ && !peers_[rank].done()) return false;
  }
  return true;
}

std::optional<absl::Status> Opening::TryFinish(absl::Time until,
                                               absl::Time deadline) {
  if (!memory_.ok()) return memory_;
  if (!failed_.ok()) return paths_.WhyLost(failed_peer_, failed_);
  while (true) {
    if (paths_.stopped()) return absl::AbortedError("stopped");
    if (absl::Status status = Advance(); !status.ok()) return status;
    if (done()) return Compare();
    std::vector<pollfd> entries;
    std::vector<int> missing;
    for (int rank = 0; rank < paths_.size(); ++rank) {
      const Peer& peer = PeerOf(rank);
      if (rank == rank_ || peer.done()) continue;
      const bool reads = peer.read < peer.to_read;
      const int events = (reads ? POLLIN : POLLRDHUP) |
                         (peer.sent < peer.to_send ? POLLOUT : 0);
      entries.push_back({paths_.fd(rank, 0), static_cast<short>(events), 0});
      missing.push_back(rank);
    }
    switch (paths_.Await(&entries, std::min(until, deadline))) {
      case DataPaths::Outcome::kStopped:
        return absl::AbortedError("stopped");
      case DataPaths::Outcome::kLate:
        if (Clock::Real()->Now() < deadline) return std::nullopt;
        return absl::DeadlineExceededError(DidNotCome(missing));
      case DataPaths::Outcome::kReady:
        break;
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      if ((entries[i].revents & (POLLRDHUP | POLLOUT)) == POLLRDHUP) {
        return paths_.WhyEnded(missing[i]);
      }
    }
  }
}

absl::Status Opening::Advance() {
  for (int rank = 0; rank < paths_.size(); ++rank) {
    if (rank == rank_) continue;
    const absl::Status written = Write(rank);
    if (!written.ok()) return paths_.WhyLost(rank, written);
    COXSWAIN_RETURN_IF_ERROR(Read(rank));
  }
  return absl::OkStatus();
}

absl::Status Opening::Write(int rank) {
  Peer& peer = PeerOf(rank);
  if (peer.sent == peer.to_send) return absl::OkStatus();
  const auto at = static_cast<size_t>(rank);
  constexpr auto kHead = static_cast<int64_t>(kFixed);
  const int64_t of_head = std::min(peer.sent, kHead);
  const int64_t of_data = peer.sent - of_head;
  const iovec parts[] = {
      {frames_[at].data() + of_head, static_cast<size_t>(kHead - of_head)},
      {data_[at].data + of_data,
       static_cast<size_t>(data_[at].bytes - of_data)}};
  const int count = data_[at].bytes > 0 ? 2 : 1;
  COXSWAIN_ASSIGN_OR_RETURN(const int64_t sent,
                            paths_.Send(rank, 0, parts, count));
  peer.sent += sent;
  return absl::OkStatus();
}

absl::Status Opening::Read(int rank) {
  Peer& peer = PeerOf(rank);
  while (peer.read < peer.to_read) {
    const absl::StatusOr<int64_t> result = paths_.Receive(
        rank, 0, peer.frame() + peer.read, peer.to_read - peer.read);
    if (!result.ok()) return paths_.WhyLost(rank, result.status());
    const int64_t received = *result;
    if (received == 0) return absl::OkStatus();
    peer.read += received;
    if (!peer.decoded && peer.read >= static_cast<int64_t>(kFixed)) {
      COXSWAIN_RETURN_IF_ERROR(Decode(rank));
    }
  }
  return absl::OkStatus();
}

absl::Status Opening::Decode(int rank) {
  Peer& peer = PeerOf(rank);
  const char* const frame = peer.frame();
  uint32_t bytes = 0;
  GetLittleEndian(frame + 4, &bytes);
  CollectiveHeaderBytes encoded;
  std::memcpy(encoded.data(), frame + 8, encoded.size());
  const auto header = DecodeCollectiveHeader(encoded);
  if (std::memcmp(frame, kFrameLetters, 4) != 0 || !header.has_value()) {
    return absl::InternalError(absl::StrCat(
        "what rank ", rank, " of ", name_,
        " begins cannot be read: it runs another version of the library"));
  }
  if (bytes > max_bytes_) {
    return absl::InternalError(
        absl::StrCat("rank ", rank, " of ", name_, " sends ", bytes,
                     " bytes where at most ", max_bytes_, " are allowed"));
  }
  peer.decoded = true;
  peer.header = *header;
  peer.bytes = bytes;
  peer.to_read = static_cast<int64_t>(kFixed) + peer.bytes;
  if (peer.read > peer.to_read) {
    // It begins something shorter, and the next has begun to arrive.
    paths_.PutBack(
        rank, absl::string_view(frame + peer.to_read,
                                static_cast<size_t>(peer.read - peer.to_read)));
    peer.read = peer.to_read;
  }
  return absl::OkStatus();
}

absl::Status Opening::Compare() const {
  std::vector<RankHeader> headers;
  bool equal = !own_.refused;
  for (int rank = 0; rank < paths_.size(); ++rank) {
    if (rank == rank_) continue;
    equal = equal && peers_[static_cast<size_t>(rank)].header == own_;
  }
  if (!equal) {
    for (int rank = 0; rank < paths_.size(); ++rank) {
      headers.push_back({rank, rank == rank_
                                   ? own_
                                   : peers_[static_cast<size_t>(rank)].header});
    }
    return CompareHeaders(name_, headers);
  }
  for (int rank = 0; rank < paths_.size(); ++rank) {
    const auto at = static_cast<size_t>(rank);
    if (rank == rank_ || peers_[at].bytes == expected_[at]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " of ", name_, " sends ", peers_[at].bytes,
                     " bytes at the beginning of its ", Describe(own_),
                     ", and rank ", rank_, " expects ", expected_[at]));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
