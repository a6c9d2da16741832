#include "client/comm/tcp/link_probe.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/tcp/ring_choice.h"
#include "client/comm/tcp/ring_order.h"

namespace coxswain {
namespace {

// A pause is so many times as long as the measurement before it.
constexpr int kPause = 9;
constexpr absl::Duration kLongestPause = absl::Seconds(1);

}  // namespace

LinkProbe::LinkProbe(TcpMessages* messages, int rank,
                     std::vector<uint64_t> host_ids,
                     std::shared_ptr<const CancelSignal> ended,
                     std::shared_ptr<MeasuredLinks> known,
                     const Timeouts& timeouts)
    : messages_(*messages),
      rank_(rank),
      host_ids_(std::move(host_ids)),
      hosts_(HostsOf(host_ids_)),
      host_(hosts_.host_of(rank)),
      ended_(std::move(ended)),
      known_(std::move(known)),
      timeouts_(timeouts),
      thread_([this] { Run(); }) {}

int LinkProbe::PartnerOf(int host, int round, int hosts) {
  // Round tables: one host, or the free place, stays; the others move on.
  const int moving = RoundsOf(hosts);
  int partner = 0;
  if (host == moving) {
    partner = round * ((moving + 1) / 2) % moving;
  } else {
    partner = ((round - host) % moving + moving) % moving;
    if (partner == host) partner = moving;
  }
  return partner < hosts ? partner : -1;
}

void LinkProbe::Run() {
  const auto hosts = static_cast<size_t>(hosts_.count());
  std::vector<int64_t> costs(hosts * hosts);
  if (rank_ == FirstRank(host_)) {
    std::vector<int64_t> row = MeasureAll();
    if (rank_ == 0) {
      costs = Collect(row);
    } else {
      const absl::Status sent = messages_.Await(
          messages_.PostSend(0, TcpMessages::kOwnTag, SpanOfValues(&row)),
          timeouts_.whole);
      if (!sent.ok()) return;
    }
  }
  const absl::Status shared =
      ShareValues(&messages_, rank_, static_cast<int>(host_ids_.size()), &costs,
                  rank_ == 0 ? timeouts_.answer : timeouts_.whole);
  // What rank 0 has is of use, whatever the others got.
  if (shared.ok() || rank_ == 0) Keep(costs);
}

std::vector<int64_t> LinkProbe::MeasureAll() {
  const int hosts = hosts_.count();
  buffer_.resize(static_cast<size_t>(kMessageBytes) * kMessages);
  std::vector<int64_t> costs(static_cast<size_t>(hosts));
  const auto measure = [&]() -> absl::Status {
    for (int round = 0; round < kPasses * RoundsOf(hosts); ++round) {
      const int partner = PartnerOf(host_, round % RoundsOf(hosts), hosts);
      if (partner < 0) continue;
      const int peer = FirstRank(partner);
      absl::Duration time;
      const bool is_first = rank_ < peer;
      for (const bool sends : {is_first, !is_first}) {
        COXSWAIN_ASSIGN_OR_RETURN(const absl::Duration taken,
                                  Move(sends, peer));
        if (sends) time = taken;
      }
      const int64_t cost = std::max<int64_t>(
          1000 * absl::ToInt64Nanoseconds(time) / (kMessageBytes * kMessages),
          1);
      int64_t& best = costs[static_cast<size_t>(partner)];
      best = best == 0 ? cost : std::min(best, cost);
      if (ended_->WaitFor(std::min(kPause * time, kLongestPause))) break;
    }
    return absl::OkStatus();
  };
  // With an error it ends early.
  measure().IgnoreError();
  return costs;
}

TcpMessages::MessagePtr LinkProbe::Post(bool sends, int peer, int64_t offset,
                                        int64_t bytes) {
  Span span;
  span.data = buffer_.data() + offset;
  span.count = bytes;
  span.dtype = DType::kUInt8;
  return sends ? messages_.PostSend(peer, TcpMessages::kOwnTag, span)
               : messages_.PostReceive(peer, TcpMessages::kOwnTag, span);
}

absl::StatusOr<absl::Duration> LinkProbe::Move(bool sends, int peer) {
  const TcpMessages::MessagePtr sign = Post(sends, peer, 0, 1);
  // A receiver posts all of them as it comes, a sender once it has come.
  std::vector<TcpMessages::MessagePtr> messages;
  const auto post_all = [&] {
    for (int64_t i = 0; i < kMessages; ++i) {
      messages.push_back(Post(sends, peer, i * kMessageBytes, kMessageBytes));
    }
  };
  if (!sends) post_all();
  absl::Status status = messages_.Await(sign, timeouts_.answer);
  const absl::Time begun = Clock::Real()->Now();
  if (sends && status.ok()) post_all();
  for (const TcpMessages::MessagePtr& message : messages) {
    // Each of them, as the memory is in use until then.
    const absl::Status one = messages_.Await(
        message, status.ok() ? timeouts_.answer : absl::ZeroDuration());
    if (status.ok()) status = one;
  }
  if (!status.ok()) return status;
  return Clock::Real()->Now() - begun;
}

std::vector<int64_t> LinkProbe::Collect(const std::vector<int64_t>& own) {
  const auto hosts = static_cast<size_t>(hosts_.count());
  std::vector<std::vector<int64_t>> rows(hosts, std::vector<int64_t>(hosts));
  rows[0] = own;
  std::vector<TcpMessages::MessagePtr> messages;
  for (int host = 1; host < hosts_.count(); ++host) {
    messages.push_back(
        messages_.PostReceive(FirstRank(host), TcpMessages::kOwnTag,
                              SpanOfValues(&rows[static_cast<size_t>(host)])));
  }
  const absl::Time end = Clock::Real()->Now() + timeouts_.collect;
  for (size_t host = 1; host < hosts; ++host) {
    const absl::Status status = messages_.Await(
        messages[host - 1],
        std::max(end - Clock::Real()->Now(), absl::ZeroDuration()));
    if (!status.ok()) rows[host].assign(hosts, 0);
  }
  std::vector<int64_t> costs;
  for (size_t a = 0; a < hosts; ++a) {
    for (size_t b = 0; b < hosts; ++b) {
      costs.push_back(std::max(rows[a][b], rows[b][a]));
    }
  }
  return costs;
}

void LinkProbe::Keep(const std::vector<int64_t>& costs) {
  if (known_ == nullptr) return;
  const auto hosts = static_cast<size_t>(hosts_.count());
  const MeasuredLinks::Costs before = known_->costs();
  MeasuredLinks::Costs now;
  for (size_t a = 0; a < hosts; ++a) {
    for (size_t b = 0; b < a; ++b) {
      const auto link = MeasuredLinks::LinkOf(IdOf(a), IdOf(b));
      const auto old = before.find(link);
      if (costs[a * hosts + b] > 0) {
        now[link] = costs[a * hosts + b];
      } else if (old != before.end()) {
        now[link] = old->second;
      }
    }
  }
  known_->Replace(std::move(now));
}

}  // namespace coxswain
