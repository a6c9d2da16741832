#include "base/front_door/front_door.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

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

constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// A record of a handshake, of whichever version 3.x; its length is not fixed.
constexpr absl::string_view kTlsRecord = "\x16\x03";
constexpr size_t kTlsRecordHeader = 5;
// Marks of the epoll set: the wake-up, the listeners, then connections.
constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstListenerId = 1;
// Fewer new ones at a time than are looked at: a flood starves nobody.
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

// The first bytes, as many as the longest greeting has. Negative: why there are
// none.
ssize_t Peek(int fd, std::string* bytes) {
  bytes->resize(kPreface.size());
  ssize_t size;
  do {
    size = recv(fd, bytes->data(), bytes->size(), MSG_PEEK | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  bytes->resize(std::max<ssize_t>(size, 0));
  return size < 0 ? -errno : size;
}

// How many of the first bytes are looked at.
size_t SizeOf(Greeting greeting) {
  return greeting == Greeting::kTls ? kTlsRecordHeader : kPreface.size();
}

// Whether the connection may have begun so; `bytes` may be its first few.
bool MayBe(Greeting greeting, absl::string_view bytes) {
  const absl::string_view begin =
      greeting == Greeting::kTls ? kTlsRecord : kPreface;
  const size_t size = std::min(begin.size(), bytes.size());
  return begin.substr(0, size) == bytes.substr(0, size);
}

absl::string_view NameOf(Greeting greeting) {
  return greeting == Greeting::kTls ? "TLS" : "HTTP/2";
}

// What is wrong with one that began otherwise.
absl::string_view Complaint(Greeting expected, absl::string_view bytes) {
  if (expected == Greeting::kTls) {
    return MayBe(Greeting::kHttp2, bytes)
               ? "it speaks plain text, and this port TLS: give it "
                 "--tls-ca"
               : "it does not speak TLS";
  }
  return MayBe(Greeting::kTls, bytes)
             ? "it speaks TLS, and this port plain text: give the coordinator "
               "--tls-cert"
             : "it does not speak HTTP/2, as gRPC does";
}

// One word of a log line, whatever a stranger sent. As in an URL, since a log
// line would escape backslashes again.
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

absl::StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Open(
    Listeners listeners, const Limits& limits, Admit admit,
    std::shared_ptr<AdmittedConnections> admitted, Greeting greeting) {
  std::unique_ptr<FrontDoor> door(new FrontDoor(std::move(listeners), limits,
                                                std::move(admit),
                                                std::move(admitted), greeting));
  bool watched = door->epoll_.valid() && door->wake_.valid() &&
                 door->Watch(door->wake_.get(), kWakeId, EPOLLIN);
  uint64_t id = kFirstListenerId;
  for (const UniqueFd& socket : door->listeners_.sockets) {
    watched = watched && door->Watch(socket.get(), id++, EPOLLIN);
  }
  if (!watched) {
    return absl::UnavailableError(
        absl::StrCat("cannot wait for connections: ", std::strerror(errno)));
  }
  door->next_id_ = id;
  FrontDoor* const running = door.get();
  door->thread_ = std::thread([running] { running->Run(); });
  return door;
}

FrontDoor::FrontDoor(Listeners listeners, const Limits& limits, Admit admit,
                     std::shared_ptr<AdmittedConnections> admitted,
                     Greeting greeting)
    : listeners_(std::move(listeners)),
      limits_(limits),
      admit_(std::move(admit)),
      admitted_(std::move(admitted)),
      greeting_(greeting),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

FrontDoor::~FrontDoor() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

bool FrontDoor::Watch(int fd, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void FrontDoor::Run() {
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

int FrontDoor::NextWaitMs() const {
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

void FrontDoor::Listen(bool on) {
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

void FrontDoor::AcceptFrom(int listener) {
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

void FrontDoor::Add(UniqueFd fd, std::string peer) {
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
                      absl::ToChronoMilliseconds(limits_.greeting_timeout)};
  // At edges: bytes that are only looked at would else be reported for ever.
  if (!Watch(number, id, EPOLLIN | EPOLLRDHUP | EPOLLET)) {
    Refuse(id, std::strerror(errno));
  }
  if (waiting_.size() > static_cast<size_t>(limits_.max_waiting_connections)) {
    Refuse(waiting_.begin()->first,
           absl::StrCat("it was the oldest of more than ",
                        limits_.max_waiting_connections,
                        " connections without a greeting "
                        "(max_waiting_connections)"));
  }
}

void FrontDoor::Look(uint64_t id, bool hung_up) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;  // refused since the event
  std::string bytes;
  const ssize_t size = Peek(found->second.fd.get(), &bytes);
  if (size == -EAGAIN && !hung_up) return;
  if (size <= 0) {
    waiting_.erase(found);
  } else if (!MayBe(greeting_, bytes)) {
    Refuse(id, Complaint(greeting_, bytes));
  } else if (bytes.size() >= SizeOf(greeting_)) {
    Waiting connection = std::move(found->second);
    waiting_.erase(found);
    LetIn(std::move(connection));
  } else if (hung_up) {
    Refuse(id, absl::StrCat("it hung up after ", size,
                            " bytes of the greeting of ", NameOf(greeting_)));
  }
}

void FrontDoor::LetIn(Waiting connection) {
  const int fd = connection.fd.get();
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  sockaddr_storage address;
  socklen_t length = sizeof(address);
  // gRPC would log each connection that is reset by now.
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return;
  }
  if (!admitted_->Add(fd)) {
    if (admitted_->cut()) return;
    refused_.Line(connection.peer,
                  {{"peer", connection.peer},
                   {"reason", absl::StrCat("there are ", admitted_->limit(),
                                           " others (max_connections)")}});
    return;
  }
  admit_(std::move(connection.fd));
}

void FrontDoor::Refuse(uint64_t id, absl::string_view reason) {
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return;
  const Waiting& connection = found->second;
  std::string bytes;
  Peek(connection.fd.get(), &bytes);
  refused_.Line(connection.peer, {{"peer", connection.peer},
                                  {"reason", reason},
                                  {"first_bytes", Escaped(bytes)}});
  waiting_.erase(found);
}

void FrontDoor::RefuseLate(Time now) {
  while (!waiting_.empty() && waiting_.begin()->second.deadline <= now) {
    Refuse(waiting_.begin()->first,
           absl::StrCat("it has not greeted as ", NameOf(greeting_),
                        " does within ",
                        absl::FormatDuration(limits_.greeting_timeout)));
  }
}

}  // namespace coxswain
