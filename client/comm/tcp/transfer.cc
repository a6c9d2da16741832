#include "client/comm/tcp/transfer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace coxswain {

std::string DidNotCome(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ", "), " did not come");
}

FlowTransfer::FlowTransfer(DataPaths* paths, std::vector<Flow> flows)
    : paths_(*paths), flows_(std::move(flows)) {
  for (const Flow& flow : flows_) {
    const int stripes = paths_.stripes(flow.peer);
    for (int stripe = 0; stripe < stripes; ++stripe) {
      Lane lane;
      lane.flow = &flow;
      lane.stripe = stripe;
      lane.step = stripes;
      lane.chunk = stripe;
      lanes_.push_back(lane);
    }
  }
}

absl::Status FlowTransfer::Run(absl::Time deadline) {
  while (true) {
    if (paths_.stopped()) return absl::AbortedError("stopped");
    bool moved = false;
    bool ended = true;
    // All of them, also those that were blocked: while one direction moves, the
    // other must not wait for it.
    for (Lane& lane : lanes_) {
      if (lane.ended()) continue;
      COXSWAIN_ASSIGN_OR_RETURN(const bool advanced, Advance(&lane));
      moved = moved || advanced;
      ended = ended && lane.ended();
    }
    if (ended) return absl::OkStatus();
    if (!moved) COXSWAIN_RETURN_IF_ERROR(Await(deadline));
  }
}

absl::StatusOr<bool> FlowTransfer::Advance(Lane* lane) {
  const Flow& flow = *lane->flow;
  lane->blocked = false;
  const Piece piece = flow.piece(lane->chunk);
  if (piece.data == nullptr) return false;
  const absl::StatusOr<int64_t> result =
      flow.outgoing ? Send(*lane, piece) : Receive(*lane, piece);
  if (!result.ok()) return paths_.WhyLost(flow.peer, result.status());
  const int64_t moved = *result;
  if (moved == 0) {
    lane->blocked = true;
    return false;
  }
  lane->offset += moved;
  if (lane->offset == piece.bytes) {
    if (flow.done != nullptr) flow.done(lane->chunk);
    lane->chunk += lane->step;
    lane->offset = 0;
  }
  return true;
}

absl::StatusOr<int64_t> FlowTransfer::Send(const Lane& lane,
                                           const Piece& piece) {
  constexpr int kMaxParts = 8;
  iovec parts[kMaxParts];
  int count = 0;
  for (int64_t at = lane.offset; at < piece.bytes && count < kMaxParts;) {
    const MemoryRun run = piece.From(at);
    parts[count++] = {run.data, static_cast<size_t>(run.bytes)};
    at += run.bytes;
  }
  return paths_.Send(lane.flow->peer, lane.stripe, parts, count);
}

absl::StatusOr<int64_t> FlowTransfer::Receive(const Lane& lane,
                                              const Piece& piece) {
  const MemoryRun run = piece.From(lane.offset);
  return paths_.Receive(lane.flow->peer, lane.stripe, run.data, run.bytes);
}

absl::Status FlowTransfer::Await(absl::Time deadline) {
  std::vector<pollfd> entries;
  std::vector<int> peers;
  for (const Lane& lane : lanes_) {
    if (!lane.blocked || lane.ended()) continue;
    const short events = lane.flow->outgoing ? POLLOUT | POLLRDHUP : POLLIN;
    entries.push_back({paths_.fd(lane.flow->peer, lane.stripe), events, 0});
    peers.push_back(lane.flow->peer);
  }
  switch (paths_.Await(&entries, deadline)) {
    case DataPaths::Outcome::kReady:
      for (size_t i = 0; i < entries.size(); ++i) {
        // A peer that ends its side while this one has more to send is gone.
        if ((entries[i].revents & (POLLRDHUP | POLLOUT)) == POLLRDHUP) {
          return paths_.WhyEnded(peers[i]);
        }
      }
      return absl::OkStatus();
    case DataPaths::Outcome::kStopped:
      return absl::AbortedError("stopped");
    case DataPaths::Outcome::kLate:
      break;
  }
  return Late();
}

absl::Status FlowTransfer::Late() const {
  std::set<int> peers;
  for (const Lane& lane : lanes_) {
    if (lane.blocked && !lane.ended()) peers.insert(lane.flow->peer);
  }
  return absl::DeadlineExceededError(
      DidNotCome(std::vector<int>(peers.begin(), peers.end())));
}

}  // namespace coxswain
