#ifndef COXSWAIN_CLIENT_COMM_TCP_LINK_PROBE_H_
#define COXSWAIN_CLIENT_COMM_TCP_LINK_PROBE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "client/comm/hosts.h"
#include "client/comm/measured_links.h"
#include "client/comm/tcp/tcp_messages.h"

namespace coxswain {

// Measures the links between the hosts of a group, once, by messages beside its
// collectives: kPasses times each host with each other one, the first ranks of
// both, at most one pair of a host at a time. One pass over a link sends
// kMessages of kMessageBytes each way, once a short message has shown that the
// peer is there. The fastest pass counts: training, and other processes, only
// make one slower. After each pair a rank pauses, so that it takes about a
// tenth of a link's time.
//
// Rank 0 collects what was measured, the slower way of each link, and gives it
// to all ranks, for the next generation. A rank that does not answer in time
// ends the part of its peers: what they have measured until then counts. No
// error of the probe is one of the communicator.
class LinkProbe {
 public:
  static constexpr int kPasses = 5;
  static constexpr int kMessages = 4;
  static constexpr int64_t kMessageBytes = 128 << 10;

  // How long a rank waits.
  struct Timeouts {
    absl::Duration answer = absl::Seconds(10);  // for a peer, at each message
    // Rank 0 for what the others have measured: they may be some pairs behind.
    absl::Duration collect = absl::Minutes(1);
    // Ranks that take no part in measuring, for the end of those that do.
    absl::Duration whole = absl::Minutes(30);
  };

  // Begins at once, on a thread of its own. All ranks of the group do; the ids
  // are by rank. `known` may be null. `messages` outlives it, and is stopped
  // before it is destroyed, as `ended` is raised.
  LinkProbe(TcpMessages* messages, int rank, std::vector<uint64_t> host_ids,
            std::shared_ptr<const CancelSignal> ended,
            std::shared_ptr<MeasuredLinks> known, const Timeouts& timeouts);
  ~LinkProbe() { thread_.join(); }
  LinkProbe(const LinkProbe&) = delete;
  LinkProbe& operator=(const LinkProbe&) = delete;

  // Returns the host that a host is paired with in a round, -1: none. In
  // RoundsOf(hosts) rounds each is paired with each other one once.
  static int PartnerOf(int host, int round, int hosts);
  static int RoundsOf(int hosts) { return hosts - 1 + hosts % 2; }

 private:
  void Run();
  // Returns what it costs to send to each host; 0: not measured.
  std::vector<int64_t> MeasureAll();
  // Sends, or receives, the messages of one pass; returns how long it took.
  absl::StatusOr<absl::Duration> Move(bool sends, int peer);
  TcpMessages::MessagePtr Post(bool sends, int peer, int64_t offset,
                               int64_t bytes);
  // On rank 0: returns the cost of each host with each host, in rows, from what
  // all have measured, as far as it comes.
  std::vector<int64_t> Collect(const std::vector<int64_t>& own);
  // Links that were not measured now keep what they had.
  void Keep(const std::vector<int64_t>& costs);
  int FirstRank(int host) const { return hosts_.ranks(host)[0]; }
  uint64_t IdOf(size_t host) const {
    return host_ids_[static_cast<size_t>(FirstRank(static_cast<int>(host)))];
  }

  TcpMessages& messages_;
  const int rank_;
  const std::vector<uint64_t> host_ids_;
  const Hosts hosts_;
  const int host_;  // this one
  const std::shared_ptr<const CancelSignal> ended_;
  const std::shared_ptr<MeasuredLinks> known_;
  const Timeouts timeouts_;
  std::vector<char> buffer_;
  std::thread thread_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_LINK_PROBE_H_
