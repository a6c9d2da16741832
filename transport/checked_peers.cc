#include "transport/checked_peers.h"

#include <netdb.h>
#include <sys/socket.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace coxswain {
namespace {

// As gRPC writes it, without the scheme; empty if the peer is gone.
std::string AddressOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getpeername(fd, name, &length) != 0 ||
      getnameinfo(name, length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  absl::string_view text = host;
  absl::ConsumePrefix(&text, "::ffff:");  // IPv4 at a socket for both
  return absl::StrContains(text, ':') ? absl::StrCat("[", text, "]:", port)
                                      : absl::StrCat(text, ":", port);
}

}  // namespace

std::string AddressOfPeer(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:")) {
    absl::ConsumePrefix(&peer, "ipv6:");
  }
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}});
}

bool CheckedPeers::Contains(absl::string_view peer) const {
  const std::string address = AddressOfPeer(peer);
  MutexLock lock(&mutex_);
  return peers_.count(address) != 0;
}

void CheckedPeers::Add(absl::string_view peer) {
  std::string address = AddressOfPeer(peer);
  MutexLock lock(&mutex_);
  if (!peers_.insert(address).second) return;
  order_.push_back(std::move(address));
  if (order_.size() <= limit_) return;
  peers_.erase(order_.front());
  order_.pop_front();
}

void CheckedPeers::Forget(int fd) {
  const std::string address = AddressOf(fd);
  MutexLock lock(&mutex_);
  peers_.erase(address);
}

}  // namespace coxswain
