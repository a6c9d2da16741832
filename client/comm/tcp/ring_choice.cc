#include "client/comm/tcp/ring_choice.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/tcp/ring_order.h"

namespace coxswain {
namespace {

// Another ring than that by ranks must be faster by so many hundredths.
constexpr int64_t kGain = 10;

struct Known {
  LinkCosts costs;
  int measured = 0;
  int missing = 0;
};

Known CostsAmong(const std::vector<uint64_t>& ids,
                 const MeasuredLinks::Costs& measured) {
  const auto hosts = static_cast<int>(ids.size());
  Known known = {LinkCosts(hosts)};
  std::vector<int64_t> sorted;
  std::vector<std::pair<int, int>> missing;
  for (int a = 0; a < hosts; ++a) {
    for (int b = 0; b < a; ++b) {
      const auto link = measured.find(MeasuredLinks::LinkOf(
          ids[static_cast<size_t>(a)], ids[static_cast<size_t>(b)]));
      if (link == measured.end()) {
        missing.emplace_back(a, b);
        continue;
      }
      known.costs.Set(a, b, link->second);
      sorted.push_back(link->second);
    }
  }
  known.measured = static_cast<int>(sorted.size());
  known.missing = static_cast<int>(missing.size());
  if (sorted.empty()) return known;
  const auto middle = sorted.begin() + known.measured / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  for (const auto& [a, b] : missing) known.costs.Set(a, b, *middle);
  return known;
}

std::string Speed(int64_t picoseconds) {
  return absl::StrFormat(
      "%.4g MB/s",
      1e6 / static_cast<double>(std::max<int64_t>(picoseconds, 1)));
}

// Returns the words for a ring's slowest link, with the first ranks of its
// hosts.
std::string SlowestLink(const HostRing& ring, const LinkCosts& costs,
                        const Hosts& hosts) {
  for (size_t i = 0; i < ring.hosts.size(); ++i) {
    const int from = ring.hosts[i];
    const int to = ring.hosts[(i + 1) % ring.hosts.size()];
    if (costs.at(from, to) != ring.slowest) continue;
    return absl::StrCat("link from the host of rank ", hosts.ranks(from)[0],
                        " to that of rank ", hosts.ranks(to)[0]);
  }
  return "link";
}

}  // namespace

RingChoice ChooseRing(const std::vector<uint64_t>& host_ids,
                      const MeasuredLinks::Costs& measured) {
  const Hosts hosts = HostsOf(host_ids);
  RingChoice choice;
  choice.ranks = RingByRank(hosts);
  if (hosts.count() > kMaxHostsToOrder) {
    choice.reason = absl::StrCat("by rank: links are measured among at most ",
                                 kMaxHostsToOrder, " hosts");
    return choice;
  }
  std::vector<uint64_t> ids;
  for (int host = 0; host < hosts.count(); ++host) {
    ids.push_back(host_ids[static_cast<size_t>(hosts.ranks(host)[0])]);
  }
  const Known known = CostsAmong(ids, measured);
  if (known.measured == 0) {
    choice.reason = "by rank: no link among these hosts has been measured";
    return choice;
  }
  const HostRing by_rank = RingByNumber(known.costs);
  const HostRing best = FindRing(known.costs);
  if (by_rank.slowest * 100 <= best.slowest * (100 + kGain)) {
    choice.reason = absl::StrCat(
        "by rank: its slowest ", SlowestLink(by_rank, known.costs, hosts),
        " has ", Speed(by_rank.slowest), ", and that of no ring found over ",
        Speed(best.slowest));
  } else {
    choice.ranks = RanksOfRing(best.hosts, hosts);
    choice.reason = absl::StrCat(
        "by measured links: the slowest ",
        SlowestLink(best, known.costs, hosts), " has ", Speed(best.slowest),
        ", by rank it would have ", Speed(by_rank.slowest));
  }
  if (known.missing > 0) {
    absl::StrAppend(&choice.reason, "; ", known.missing, " of ",
                    known.missing + known.measured, " links were not measured");
  }
  return choice;
}

std::string Describe(const RingChoice& choice) {
  constexpr std::ptrdiff_t kNamed = 64;
  const auto begin = choice.ranks.begin();
  const auto size = static_cast<std::ptrdiff_t>(choice.ranks.size());
  return absl::StrCat(absl::StrJoin(begin, begin + std::min(kNamed, size), " "),
                      size > kNamed ? " ...; " : "; ", choice.reason);
}

Span SpanOfValues(std::vector<int64_t>* values) {
  Span span;
  span.data = values->data();
  span.count = static_cast<int64_t>(values->size());
  span.dtype = DType::kInt64;
  return span;
}

absl::Status ShareValues(TcpMessages* messages, int rank, int size,
                         std::vector<int64_t>* values, absl::Duration timeout) {
  const absl::Time end = Clock::Real()->Now() + timeout;
  const Span span = SpanOfValues(values);
  if (rank != 0) {
    return messages->Await(messages->PostReceive(0, TcpMessages::kOwnTag, span),
                           timeout);
  }
  std::vector<TcpMessages::MessagePtr> sent;
  for (int peer = 1; peer < size; ++peer) {
    sent.push_back(messages->PostSend(peer, TcpMessages::kOwnTag, span));
  }
  // All of them: the memory is in use until then.
  absl::Status first;
  for (const TcpMessages::MessagePtr& message : sent) {
    const absl::Status status = messages->Await(
        message, std::max(end - Clock::Real()->Now(), absl::ZeroDuration()));
    if (first.ok()) first = status;
  }
  return first;
}

absl::Status ShareChoice(TcpMessages* messages, int rank, RingChoice* choice,
                         absl::Duration timeout) {
  std::vector<int64_t> values(choice->ranks.begin(), choice->ranks.end());
  const size_t size = values.size();
  values.push_back(choice->measures ? 1 : 0);
  COXSWAIN_RETURN_IF_ERROR(
      ShareValues(messages, rank, static_cast<int>(size), &values, timeout));
  choice->measures = values.back() != 0;
  values.pop_back();
  choice->ranks.assign(values.begin(), values.end());
  std::sort(values.begin(), values.end());
  for (size_t i = 0; i < size; ++i) {
    if (values[i] != static_cast<int64_t>(i)) {
      return absl::InternalError("rank 0 has sent a ring that is none");
    }
  }
  return absl::OkStatus();
}

}  // namespace coxswain
