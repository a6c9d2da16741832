#include "tests/support/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/check.h"

namespace coxswain {
namespace {

UniqueFd BindToLoopback(int* port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  COXSWAIN_CHECK(fd.valid());
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  COXSWAIN_CHECK(bind(fd.get(), name, length) == 0);
  COXSWAIN_CHECK(getsockname(fd.get(), name, &length) == 0);
  *port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

UniqueFd ListenOnLoopback(int* port) {
  UniqueFd fd = BindToLoopback(port);
  // Set once the port is chosen, so that no other socket shares it.
  const int on = 1;
  COXSWAIN_CHECK(
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
  COXSWAIN_CHECK(listen(fd.get(), SOMAXCONN) == 0);
  return fd;
}

int UnusedPort() {
  int port = 0;
  BindToLoopback(&port);
  return port;
}

}  // namespace coxswain
