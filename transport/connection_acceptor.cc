#include "transport/connection_acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace coxswain {
namespace {

// For open shards, the state's files, and gRPC itself.
constexpr rlim_t kReserve = 2048;

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr absl::string_view kEndOfHead = "\r\n\r\n";
// A record of a handshake, of whichever version 3.x; its length is not fixed.
constexpr absl::string_view kTlsRecord = "\x16\x03";
constexpr size_t kTlsRecordHeader = 5;
// Marks of the epoll set: the wake-up, the listeners, then connections.
constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstListenerId = 1;
// Fewer new ones at a time than are handled: a flood starves no connection.
constexpr int kMaxEvents = 64;
constexpr int kMaxAccepts = 32;
constexpr auto kLongestWait = std::chrono::seconds(10);
// Without free descriptors there is nothing to do but to wait for some.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);

void SetTcpOption(int fd, int option, int value) {
  setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
}

std::string AddressText(const sockaddr_storage& address, socklen_t length) {
  char text[NI_MAXHOST];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text,
                  sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "unknown";
  }
  absl::string_view host = text;
  absl::ConsumePrefix(&host, "::ffff:");  // IPv4 at a socket for both
  return std::string(host);
}

// How many of the first bytes are checked.
size_t SizeOf(Preface preface) {
  switch (preface) {
    case Preface::kTls:
      return kTlsRecordHeader;
    case Preface::kHttp1:
      return ConnectionAcceptor::kMaxHttpRequest;
    case Preface::kHttp2:
      break;
  }
  return kPreface.size();
}

// Returns the first `size` bytes, as far as they have come. Negative: why there
// are none.
ssize_t Peek(int fd, size_t size_wanted, std::string* bytes) {
  bytes->resize(size_wanted);
  ssize_t size;
  do {
    size = recv(fd, bytes->data(), bytes->size(), MSG_PEEK | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  bytes->resize(std::max<ssize_t>(size, 0));
  return size < 0 ? -errno : size;
}

// Returns whether the connection may have begun so; `bytes` may be its first
// few.
bool MayBe(Preface preface, absl::string_view bytes) {
  // Any other beginning is answered as a bad request.
  if (preface == Preface::kHttp1) return true;
  const absl::string_view begin =
      preface == Preface::kTls ? kTlsRecord : kPreface;
  const size_t size = std::min(begin.size(), bytes.size());
  return begin.substr(0, size) == bytes.substr(0, size);
}

// Returns whether these first bytes, which may be the preface, are all of it.
bool IsWhole(Preface preface, absl::string_view bytes) {
  if (bytes.size() >= SizeOf(preface)) return true;
  return preface == Preface::kHttp1 && absl::StrContains(bytes, kEndOfHead);
}

absl::string_view NameOf(Preface preface) {
  switch (preface) {
    case Preface::kTls:
      return "TLS";
    case Preface::kHttp1:
      return "HTTP/1.1";
    case Preface::kHttp2:
      break;
  }
  return "HTTP/2";
}

// Returns what is wrong with one that began otherwise.
absl::string_view ProblemOf(Preface expected, absl::string_view bytes) {
  if (expected == Preface::kTls) {
    return MayBe(Preface::kHttp2, bytes)
               ? "it connects in plain text, and this port takes TLS: give it "
                 "--tls-ca"
               : "it does not speak TLS";
  }
  return MayBe(Preface::kTls, bytes) ? "it connects with TLS, and this port "
                                       "takes plain text: give the coordinator "
                                       "--tls-cert"
                                     : "it does not speak HTTP/2, as gRPC does";
}

// Returns what a client sent as one word of a log line. Escaped as in an URL,
// since a log line would escape backslashes again.
std::string Escaped(absl::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    if (absl::ascii_isgraph(c) && !absl::StrContains("%\"\\=", c)) {
      text += c;
    } else {
      absl::StrAppendFormat(&text, "%%%02x", static_cast<unsigned char>(c));
    }
  }
  return text;
}

}  // namespace

bool AcceptedConnections::IsOpen(const Connection& connection) {
  struct stat status = {};
  return fstat(connection.fd, &status) == 0 &&
         status.st_dev == connection.device &&
         status.st_ino == connection.inode;
}

bool AcceptedConnections::Add(int fd) {
  MutexLock lock(&mutex_);
  if (cut_) return false;
  // Counted anew only at the limit.
  if (connections_.size() >= limit_) {
    connections_.erase(
        std::remove_if(connections_.begin(), connections_.end(),
                       [](const auto& known) { return !IsOpen(known); }),
        connections_.end());
  }
  if (connections_.size() >= limit_) return false;
  struct stat status = {};
  fstat(fd, &status);
  connections_.push_back({fd, status.st_dev, status.st_ino});
  return true;
}

bool AcceptedConnections::cut() const {
  MutexLock lock(&mutex_);
  return cut_;
}

void AcceptedConnections::Cut() {
  MutexLock lock(&mutex_);
  cut_ = true;
  for (const Connection& connection : connections_) {
    if (IsOpen(connection)) shutdown(connection.fd, SHUT_RDWR);
  }
  connections_.clear();
}

int ConnectionLimit(int wanted, unsigned long descriptors) {
  const rlim_t left = descriptors - std::min(kReserve, descriptors / 4);
  return static_cast<int>(std::min<rlim_t>(left, static_cast<rlim_t>(wanted)));
}

int ConnectionLimit(int wanted) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  return ConnectionLimit(wanted, limit.rlim_cur);
}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Open(
    Listeners listeners, const Limits& limits, Accept accept,
    std::shared_ptr<AcceptedConnections> accepted, Preface preface) {
  std::unique_ptr<ConnectionAcceptor> acceptor(
      new ConnectionAcceptor(std::move(listeners), limits, std::move(accept),
                             std::move(accepted), preface));
  bool watched = acceptor->epoll_.valid() && acceptor->wake_.valid() &&
                 acceptor->Watch(acceptor->wake_.get(), kWakeId, EPOLLIN);
  uint64_t id = kFirstListenerId;
  for (const UniqueFd& socket : acceptor->listeners_.sockets) {
    watched = watched && acceptor->Watch(socket.get(), id++, EPOLLIN);
  }
  if (!watched) {
    return absl::UnavailableError(
        absl::StrCat("cannot wait for connections: ", std::strerror(errno)));
  }
  acceptor->next_id_ = id;
  ConnectionAcceptor* const running = acceptor.get();
  acceptor->thread_ = std::thread([running] { running->Run(); });
  return acceptor;
}

ConnectionAcceptor::ConnectionAcceptor(
    Listeners listeners, const Limits& limits, Accept accept,
    std::shared_ptr<AcceptedConnections> accepted, Preface preface)
    : listeners_(std::move(listeners)),
      limits_(limits),
      accept_(std::move(accept)),
      accepted_(std::move(accepted)),
      preface_(preface),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

ConnectionAcceptor::~ConnectionAcceptor() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

bool ConnectionAcceptor::Watch(int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void ConnectionAcceptor::Run() {
  while (true) {
    epoll_event events[kMaxEvents];
    const int count =
        epoll_wait(epoll_.get(), events, kMaxEvents, NextWaitMs());
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id == kWakeId) return;
      const uint64_t listener = id - kFirstListenerId;
      if (listener < listeners_.sockets.size()) {
        AcceptFrom(listeners_.sockets[listener].get());
      } else {
        Look(id, events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
      }
    }
    const Time now = std::chrono::steady_clock::now();
    RefuseLate(now);
    if (!listening_ && now >= listen_again_) Listen(true);
  }
}

int ConnectionAcceptor::NextWaitMs() const {
  const Time now = std::chrono::steady_clock::now();
  Time until = now + kLongestWait;
  if (!waiting_.empty()) {
    until = std::min(until, waiting_.begin()->second.deadline);
  }
  if (!listening_) until = std::min(until, listen_again_);
  const auto wait =
      std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  return static_cast<int>(std::max<int64_t>(wait, 0));
}

void ConnectionAcceptor::Listen(bool on) {
  listening_ = on;
  listen_again_ = std::chrono::steady_clock::now() + kAcceptPause;
  uint64_t id = kFirstListenerId;
  for (const UniqueFd& socket : listeners_.sockets) {
    epoll_event event = {};
    if (on) event.events = EPOLLIN;
    event.data.u64 = id++;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket.get(), &event);
  }
}

void ConnectionAcceptor::AcceptFrom(int listener) {
  for (int i = 0; i < kMaxAccepts; ++i) {
    sockaddr_storage address = {};
    socklen_t length = sizeof(address);
    UniqueFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&address),
                        &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      Add(std::move(fd), AddressText(address, length));
      continue;
    }
    if (errno == EAGAIN) return;
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
        errno == ENOMEM) {
      const std::string reason = std::strerror(errno);
      if (!waiting_.empty()) {
        Refuse(waiting_.begin()->first,
               absl::StrCat("its place was needed for another: ", reason));
        continue;
      }
      not_accepted_.Line("", {{"reason", reason}});
      Listen(false);
      return;
    }
    // Anything else is the end of that one connection.
  }
}

void ConnectionAcceptor::Add(UniqueFd fd, std::string peer) {
  // As gRPC sets them on sockets that it accepts: answers leave at once, and
  // what is not acknowledged in time is a lost connection.
  SetTcpOption(fd.get(), TCP_NODELAY, 1);
  SetTcpOption(
      fd.get(), TCP_USER_TIMEOUT,
      static_cast<int>(absl::ToInt64Milliseconds(limits_.keepalive_timeout)));
  const uint64_t id = next_id_++;
  const int number = fd.get();
  waiting_[id] = {std::move(fd), std::move(peer),
                  std::chrono::steady_clock::now() +
                      absl::ToChronoMilliseconds(limits_.preface_timeout)};
  // At edges: bytes that are only peeked at would otherwise be reported for
  // ever.
  if (!Watch(number, id, EPOLLIN | EPOLLRDHUP | EPOLLET)) {
    Refuse(id, std::strerror(errno));
  }
  if (waiting_.size() > static_cast<size_t>(limits_.max_waiting_connections)) {
    Refuse(waiting_.begin()->first,
           absl::StrCat("it was the oldest of more than ",
                        limits_.max_waiting_connections,
                        " connections that had not sent a preface "
                        "(max_waiting_connections)"));
  }
}

void ConnectionAcceptor::Look(uint64_t id, bool hung_up) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;  // refused since the event
  std::string bytes;
  const ssize_t size = Peek(found->second.fd.get(), SizeOf(preface_), &bytes);
  if (size == -EAGAIN && !hung_up) return;
  if (size <= 0) {
    waiting_.erase(found);
  } else if (!MayBe(preface_, bytes)) {
    Refuse(id, ProblemOf(preface_, bytes));
  } else if (IsWhole(preface_, bytes)) {
    Waiting connection = std::move(found->second);
    waiting_.erase(found);
    HandOver(std::move(connection));
  } else if (hung_up) {
    Refuse(id, absl::StrCat("it closed the connection after ", size,
                            " bytes of the preface of ", NameOf(preface_)));
  }
}

void ConnectionAcceptor::HandOver(Waiting connection) {
  const int fd = connection.fd.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  sockaddr_storage address;
  socklen_t length = sizeof(address);
  // gRPC would log each connection that is reset by now.
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return;
  }
  if (!accepted_->Add(fd)) {
    if (accepted_->cut()) return;
    refused_.Line(connection.peer,
                  {{"peer", connection.peer},
                   {"reason", absl::StrCat("there are ", accepted_->limit(),
                                           " others (max_connections)")}});
    return;
  }
  accept_(std::move(connection.fd));
}

void ConnectionAcceptor::Refuse(uint64_t id, absl::string_view reason) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  const Waiting& connection = found->second;
  std::string bytes;
  Peek(connection.fd.get(), kPreface.size(), &bytes);
  refused_.Line(connection.peer, {{"peer", connection.peer},
                                  {"reason", reason},
                                  {"first_bytes", Escaped(bytes)}});
  waiting_.erase(found);
}

void ConnectionAcceptor::RefuseLate(Time now) {
  while (!waiting_.empty() && waiting_.begin()->second.deadline <= now) {
    Refuse(waiting_.begin()->first,
           absl::StrCat("it has not sent the preface of ", NameOf(preface_),
                        " within ",
                        absl::FormatDuration(limits_.preface_timeout)));
  }
}

}  // namespace coxswain
