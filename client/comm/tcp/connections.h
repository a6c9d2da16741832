#ifndef COXSWAIN_CLIENT_COMM_TCP_CONNECTIONS_H_
#define COXSWAIN_CLIENT_COMM_TCP_CONNECTIONS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/comm/communicator.h"
#include "client/comm/tcp/tcp_stream.h"

namespace coxswain {

// The connections with one peer; none with oneself.
struct TcpLinks {
  TcpStream control;            // messages, and how the peer ended
  std::vector<TcpStream> data;  // collectives; at least one
};

// How a group is connected: each rank with each other one. All collectives
// begin by a frame from each rank to each other one (opening.h), so every pair
// is needed from the first collective on, and a pair that cannot connect is an
// error here rather than amid a step.
struct TcpConnections {
  std::vector<TcpLinks> links;     // by rank
  std::vector<uint64_t> host_ids;  // by rank: equal where they share a host
};

// At most so many data connections a pair.
constexpr int kMaxStripes = 8;

// Connects all ranks of options.id through options.store, under
// "tcp/<options.id>/<rank>": higher ranks call lower ones, and both show that
// they have read the store (hello.h). `stripes` data connections a pair; 0: as
// many as pay, by the number of ranks and whether the pair is on one host.
// With options.encrypts, all of it by TlsKeys: then a rank is one that has the
// key. `host_id` stands for the host of this rank; 0: that of the machine does.
// Blocks until all are connected. DEADLINE_EXCEEDED names who did not come,
// UNAVAILABLE who cannot be reached; options.cancel ends it at once.
//
// Strangers who connect are dropped: kHelloTimeout after they came, or once
// they sent what is no hello of this group, of which no more than its length is
// read, after TlsChannel::kMaxHandshakeBytes where it is encrypted. At most
// kMaxStrangers of them are read at a time, beside the connections of the group
// that are still missing; others wait to be accepted.
absl::StatusOr<TcpConnections> ConnectRanks(const CommunicatorOptions& options,
                                            int stripes, uint64_t host_id = 0);
constexpr absl::Duration kHelloTimeout = absl::Seconds(5);
constexpr int kMaxStrangers = 64;

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_CONNECTIONS_H_
