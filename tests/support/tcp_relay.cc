#include "tests/support/tcp_relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/support/loopback.h"

namespace coxswain {
namespace {

constexpr absl::Duration kRelayTimeout = absl::Seconds(20);

sockaddr_in AddressOf(const TcpRelay::End& end) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  COXSWAIN_CHECK(inet_pton(AF_INET, end.host.c_str(), &address.sin_addr) == 1);
  address.sin_port = htons(end.port);
  return address;
}

// False once one of them has ended. What is sent is little, and read.
bool Forward(int from, int to) {
  char bytes[65536];
  const ssize_t size = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (size <= 0) return size < 0 && (errno == EAGAIN || errno == EINTR);
  for (ssize_t sent = 0; sent < size;) {
    const ssize_t part = send(to, bytes + sent, size - sent, MSG_NOSIGNAL);
    if (part <= 0) return false;
    sent += part;
  }
  return true;
}

}  // namespace

TcpRelay::TcpRelay(int target_port)
    : TcpRelay({"127.0.0.1", target_port}, End()) {}

TcpRelay::TcpRelay(End target, End source)
    : target_(std::move(target)),
      source_(std::move(source)),
      listener_(ListenOnLoopback(&port_)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::thread([this] { Run(); });
}

TcpRelay::~TcpRelay() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  Wake();
  thread_.join();
}

void TcpRelay::Wake() { eventfd_write(wake_.get(), 1); }

void TcpRelay::Set(Mode mode) {
  {
    MutexLock lock(&mutex_);
    mode_ = mode;
  }
  Wake();
}

void TcpRelay::Break() {
  MutexLock lock(&mutex_);
  break_ = true;
  Wake();
  COXSWAIN_CHECK(broken_.WaitFor(
      &mutex_, kRelayTimeout,
      [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !break_; }));
}

void TcpRelay::Run() {
  while (true) {
    Mode mode;
    {
      MutexLock lock(&mutex_);
      if (stop_) return;
      if (break_) pairs_.clear();
      break_ = false;
      mode = mode_;
    }
    broken_.NotifyAll();
    // Negative descriptors are passed over.
    const auto unless = [](bool held, int fd) {
      return pollfd{held ? -1 : fd, POLLIN, 0};
    };
    std::vector<pollfd> watched = {
        unless(false, wake_.get()),
        unless(mode == Mode::kHoldAll, listener_.get())};
    for (const Pair& pair : pairs_) {
      watched.push_back(unless(mode == Mode::kHoldAll, pair.client.get()));
      watched.push_back(unless(mode != Mode::kOpen, pair.server.get()));
    }
    poll(watched.data(), watched.size(), -1);
    eventfd_t ignored;
    eventfd_read(wake_.get(), &ignored);
    size_t at = 2;
    for (Pair& pair : pairs_) {
      const bool asked = watched[at++].revents != 0;
      const bool answered = watched[at++].revents != 0;
      if (asked && !Forward(pair.client.get(), pair.server.get()))
        pair.ended = true;
      if (answered && !Forward(pair.server.get(), pair.client.get()))
        pair.ended = true;
    }
    pairs_.remove_if([](const Pair& pair) { return pair.ended; });
    if (watched[1].revents != 0) Accept();
  }
}

void TcpRelay::Accept() {
  Pair pair;
  pair.client =
      UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  pair.server = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in source = AddressOf(source_);
  const sockaddr_in target = AddressOf(target_);
  // Of several connections to different targets one port may be the source.
  const int yes = 1;
  setsockopt(pair.server.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  COXSWAIN_CHECK(bind(pair.server.get(),
                      reinterpret_cast<const sockaddr*>(&source),
                      sizeof(source)) == 0);
  if (connect(pair.server.get(), reinterpret_cast<const sockaddr*>(&target),
              sizeof(target)) == 0) {
    pairs_.push_back(std::move(pair));
  }
}

}  // namespace coxswain
