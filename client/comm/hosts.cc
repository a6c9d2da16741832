#include "client/comm/hosts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

// How long one question to the store lasts before it looks for cancellation.
constexpr absl::Duration kLook = absl::Seconds(1);
// Among hosts with different numbers of ranks, unless all have more.
constexpr int kUnevenBridges = 4;

std::string Key(const CommunicatorOptions& options, absl::string_view what,
                absl::string_view who) {
  return absl::StrCat("hosts/", options.id, "/", what, "/", who);
}

absl::StatusOr<std::string> Get(const CommunicatorOptions& options,
                                const std::string& key, absl::Time end,
                                absl::string_view who) {
  while (true) {
    if (options.cancel != nullptr) {
      COXSWAIN_RETURN_IF_ERROR(options.cancel->status());
    }
    const absl::Duration left = end - Clock::Real()->Now();
    auto value =
        options.store->Get(key, std::clamp(left, absl::ZeroDuration(), kLook));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    if (left > absl::ZeroDuration()) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        "connecting rank ", options.rank, " of ", options.size,
        " of communicator '", options.id, "': ", who, " did not arrive within ",
        absl::FormatDuration(options.timeout)));
  }
}

// Every rank's word, on rank 0.
absl::StatusOr<std::vector<std::string>> Gather(
    const CommunicatorOptions& options, absl::string_view what,
    absl::Time end) {
  std::vector<std::string> words;
  for (int rank = 0; rank < options.size; ++rank) {
    COXSWAIN_ASSIGN_OR_RETURN(
        std::string word, Get(options, Key(options, what, absl::StrCat(rank)),
                              end, absl::StrCat("rank ", rank)));
    words.push_back(std::move(word));
  }
  return words;
}

// Rank 0 decides by what all have sent, and sends all the result.
template <typename Decide>
absl::StatusOr<std::string> Agree(const CommunicatorOptions& options,
                                  absl::string_view what,
                                  absl::string_view word, Decide decide) {
  const absl::Time end = Clock::Real()->Now() + options.timeout;
  COXSWAIN_RETURN_IF_ERROR(
      options.store->Set(Key(options, what, absl::StrCat(options.rank)), word));
  const std::string verdict = Key(options, what, "verdict");
  if (options.rank != 0) {
    return Get(options, verdict, end, "rank 0, or one that it waits for,");
  }
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                            Gather(options, what, end));
  const std::string decision = decide(words);
  COXSWAIN_RETURN_IF_ERROR(options.store->Set(verdict, decision));
  return decision;
}

std::string NumberHosts(const std::vector<std::string>& identities) {
  std::map<std::string, int> numbers;
  std::vector<int> host_of;
  for (const std::string& identity : identities) {
    const int next = static_cast<int>(numbers.size());
    host_of.push_back(numbers.emplace(identity, next).first->second);
  }
  return absl::StrJoin(host_of, ",");
}

}  // namespace

std::string HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  struct stat users {};
  if (boot.empty() || stat("/proc/self/ns/net", &network) != 0 ||
      stat("/proc/self/ns/user", &users) != 0) {
    return absl::StrCat("unknown-", absl::Hex(RandomSource::System()->Next()));
  }
  return absl::StrCat(boot, "/net:", static_cast<uint64_t>(network.st_ino),
                      "/users:", static_cast<uint64_t>(users.st_ino),
                      "/user:", geteuid());
}

Hosts::Hosts(const std::vector<int>& host_of) {
  std::map<int, int> numbers;
  for (size_t rank = 0; rank < host_of.size(); ++rank) {
    const int next = static_cast<int>(numbers.size());
    const int host = numbers.emplace(host_of[rank], next).first->second;
    if (host == next) ranks_.emplace_back();
    host_of_.push_back(host);
    ranks_[static_cast<size_t>(host)].push_back(static_cast<int>(rank));
  }
}

int Hosts::local_rank(int rank) const {
  const std::vector<int>& members = ranks(host_of(rank));
  return static_cast<int>(std::find(members.begin(), members.end(), rank) -
                          members.begin());
}

int Hosts::bridges() const {
  int least = static_cast<int>(ranks_[0].size());
  int most = least;
  for (const auto& members : ranks_) {
    least = std::min(least, static_cast<int>(members.size()));
    most = std::max(most, static_cast<int>(members.size()));
  }
  return std::min(most, std::max(least, kUnevenBridges));
}

std::vector<int> Hosts::bridge(int index) const {
  std::vector<int> result;
  for (int host = 0; host < count(); ++host) {
    result.push_back(ranks(host)[static_cast<size_t>(bridge_end(index, host))]);
  }
  return result;
}

absl::StatusOr<Hosts> FindHosts(const CommunicatorOptions& options,
                                const std::string& identity) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string numbers,
                            Agree(options, "identity", identity, NumberHosts));
  std::vector<int> host_of;
  for (const absl::string_view text : absl::StrSplit(numbers, ',')) {
    int host = 0;
    if (!absl::SimpleAtoi(text, &host)) break;
    host_of.push_back(host);
  }
  if (static_cast<int>(host_of.size()) != options.size) {
    return absl::InternalError(
        absl::StrCat("rank 0 of communicator '", options.id, "' named ",
                     host_of.size(), " ranks of ", options.size));
  }
  return Hosts(host_of);
}

absl::StatusOr<std::string> AgreeThatAll(const CommunicatorOptions& options,
                                         absl::string_view what,
                                         const absl::Status& own) {
  const std::string word =
      own.ok() ? "" : absl::StrCat("rank ", options.rank, ": ", own.message());
  const auto decide = [](const std::vector<std::string>& words) {
    const auto bad =
        std::find_if(words.begin(), words.end(),
                     [](const std::string& one) { return !one.empty(); });
    return bad == words.end() ? std::string() : *bad;
  };
  return Agree(options, what, word, decide);
}

}  // namespace coxswain
