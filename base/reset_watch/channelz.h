#ifndef COXSWAIN_BASE_RESET_WATCH_CHANNELZ_H_
#define COXSWAIN_BASE_RESET_WATCH_CHANNELZ_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace coxswain::grpc_counts {

// What gRPC counts of the servers of this process and of their connections
// (channelz, gRFC A14). For reset_watch. Plain functions; any thread. Counts
// are since the server, or the connection, came to be.

struct Server {
  int64_t id = 0;
  int64_t begun = 0;   // calls
  int64_t ended = 0;   // of these, whichever way
  int64_t failed = 0;  // of the ended, those without a good answer
};
std::vector<Server> ListServers();

// One end of a connection: four or sixteen bytes, and a port. An IPv4 address
// that was mapped to IPv6 has four.
struct Endpoint {
  std::string ip;
  int port = 0;
};
bool operator<(const Endpoint& a, const Endpoint& b);
// As in "10.0.0.1:80" and "[::1]:80".
std::string TextOf(const Endpoint& endpoint);

struct Connection {
  int64_t id = 0;  // never used again
  Endpoint local;
  Endpoint remote;
  int64_t begun = 0;     // calls
  int64_t answered = 0;  // of these: their status was sent
  int64_t broken = 0;    // of these: they ended without
};
// Those over TCP that are open. Costs some 20 microseconds for each.
std::vector<Connection> ListConnections(int64_t server);

// Ends connections at once: what was not sent is not sent, and what has come is
// not read. Those that were there, in any order.
std::vector<Connection> End(const std::vector<Connection>& connections);

// One answer of gRPC's, for ListConnections. Without the addresses if they are
// of another kind.
Connection ParseConnection(absl::string_view json);

}  // namespace coxswain::grpc_counts

#endif  // COXSWAIN_BASE_RESET_WATCH_CHANNELZ_H_
