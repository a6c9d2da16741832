#include "tests/bench/schedule/epoll.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/clock.h"

namespace coxswain::bench {
namespace {

constexpr int kMaxEvents = 128;
constexpr int kTimeoutMs = 10'000;

void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void Watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

// Listens on a free port, which it stores.
int Listen(int* port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const bool listens = bind(fd, any, size) == 0 && listen(fd, 1024) == 0 &&
                       getsockname(fd, any, &size) == 0;
  *port = listens ? ntohs(address.sin_port) : 0;
  return fd;
}

// Four bytes over the loopback interface are never split.
bool Receive(int fd, uint32_t* value) {
  return read(fd, value, sizeof(*value)) == sizeof(*value);
}
bool Send(int fd, uint32_t value) {
  return write(fd, &value, sizeof(value)) == sizeof(value);
}

}  // namespace

void ServeEpollRounds(const std::function<void(int port)>& tell) {
  int port = 0;
  const int listener = Listen(&port);
  const int epoll = epoll_create1(0);
  Watch(epoll, listener);
  tell(port);
  std::vector<int> waiting;
  epoll_event events[kMaxEvents];
  while (true) {
    const int ready = epoll_wait(epoll, events, kMaxEvents, -1);
    for (int i = 0; i < ready; ++i) {
      const int fd = events[i].data.fd;
      if (fd == listener) {
        const int client = accept(listener, nullptr, nullptr);
        SendAtOnce(client);
        Watch(epoll, client);
        continue;
      }
      uint32_t clients = 0;
      if (!Receive(fd, &clients)) {
        close(fd);
        continue;
      }
      waiting.push_back(fd);
      if (waiting.size() < clients) continue;
      for (const int client : waiting) Send(client, clients);
      waiting.clear();
    }
  }
}

absl::Status EpollClients::Connect(int port, int count) {
  sockets_.clear();
  epoll_ = UniqueFd(epoll_create1(0));
  for (int i = 0; i < count; ++i) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = Loopback(port);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
      return absl::ErrnoToStatus(errno, "connect");
    }
    SendAtOnce(fd.get());
    Watch(epoll_.get(), fd.get());
    sockets_.push_back(std::move(fd));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> EpollClients::Round() {
  const auto clients = static_cast<uint32_t>(sockets_.size());
  const absl::Time begun = Clock::Real()->Now();
  for (const UniqueFd& fd : sockets_) {
    if (!Send(fd.get(), clients)) return absl::ErrnoToStatus(errno, "write");
  }
  epoll_event events[kMaxEvents];
  for (uint32_t answered = 0; answered < clients;) {
    const int ready = epoll_wait(epoll_.get(), events, kMaxEvents, kTimeoutMs);
    if (ready <= 0) return absl::DeadlineExceededError("no answer");
    for (int i = 0; i < ready; ++i) {
      uint32_t value = 0;
      if (!Receive(events[i].data.fd, &value)) {
        return absl::UnavailableError("the server has closed a socket");
      }
      ++answered;
    }
  }
  return Clock::Real()->Now() - begun;
}

}  // namespace coxswain::bench
