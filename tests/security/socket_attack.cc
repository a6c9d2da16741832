#include "tests/security/socket_attack.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/random.h"
#include "base/unique_fd.h"
#include "tests/security/half_messages.h"
#include "tests/security/http2.h"

namespace coxswain {
namespace {

// How many are opened again before those that are there are looked at.
constexpr int kMostOpened = 64;
constexpr int kLookMs = 20;
// Unfinished messages on a connection.
constexpr int kHalfMessages = 64;
// gRPC takes 8 KiB of headers.
constexpr size_t kPadding = 6500;

std::string Settings() { return Http2Frame(kHttp2Settings, 0, 0, ""); }

// Calls that are reset before they can be answered.
std::string BegunAndReset(uint32_t* stream, bool whole) {
  const std::string headers = GrpcHeaders("/coxswain.v1.Rendezvous/Describe");
  std::string bytes;
  for (int i = 0; i < 50; ++i, *stream += 2) {
    bytes += Http2Frame(kHttp2Headers, kHttp2EndHeaders, *stream, headers);
    if (whole) {
      bytes +=
          Http2Frame(kHttp2Data, kHttp2EndStream, *stream, GrpcMessage(""));
    }
    bytes += Http2Frame(kHttp2Reset, 0, *stream, std::string("\0\0\0\x08", 4));
  }
  return bytes;
}

std::string Pings() {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) {
    bytes += Http2Frame(kHttp2Ping, 0, 0, "payload!");
  }
  return bytes;
}

struct Connection {
  UniqueFd fd;
  std::string unsent;
  uint32_t stream = 1;
  std::unique_ptr<HalfMessages> half;  // of that attack
};

class SocketAttack : public Attack {
 public:
  SocketAttack(AttackKind kind, int port, int connections)
      : kind_(kind),
        port_(port),
        connections_(connections),
        wake_(eventfd(0, EFD_CLOEXEC)) {
    for (Connection& one : connections_) Open(&one);
    thread_ = std::thread([this] { Run(); });
  }
  ~SocketAttack() override {
    eventfd_write(wake_.get(), 1);
    thread_.join();
  }

  Count count() const override { return {opened_, closed_, 0, sent_}; }

 private:
  void Run() {
    while (!Look()) {
      int opened = 0;
      for (Connection& one : connections_) {
        if (one.fd.valid() || opened == kMostOpened) continue;
        Open(&one);
        ++opened;
      }
    }
  }

  // Deals with what has happened; true once it is to end.
  bool Look() {
    std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
    for (const Connection& one : connections_) {
      const short writes = one.unsent.empty() ? 0 : POLLOUT;
      entries.push_back({one.fd.get(), static_cast<short>(POLLIN | writes), 0});
    }
    poll(entries.data(), entries.size(), kLookMs);
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (entries[i + 1].revents == 0) continue;
      if (IsClosed(entries[i + 1].revents, &connections_[i])) {
        connections_[i] = Connection();
        ++closed_;
      } else {
        SendMore(&connections_[i]);
      }
    }
    return entries[0].revents != 0;
  }

  void Open(Connection* one) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    one->fd = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    COXSWAIN_CHECK(one->fd.valid());
    if (connect(one->fd.get(), reinterpret_cast<sockaddr*>(&address),
                sizeof(address)) != 0) {
      one->fd.Close();
      return;
    }
    fcntl(one->fd.get(), F_SETFL, O_NONBLOCK);
    ++opened_;
    if (kind_ == AttackKind::kHalfMessages) {
      one->half = std::make_unique<HalfMessages>(kHalfMessages);
    }
    if (kind_ == AttackKind::kPaddedHalfMessages) {
      one->half = std::make_unique<HalfMessages>(kHalfMessages, kPadding);
    }
    one->unsent = FirstBytes();
    SendMore(one);
  }

  std::string FirstBytes() {
    switch (kind_) {
      case AttackKind::kGreetedSilent:
        return absl::StrCat(kHttp2Preface, Settings());
      case AttackKind::kGarbage:
        return absl::StrCat("\xfe", Random(200));
      case AttackKind::kBrokenFrames:
        return absl::StrCat(kHttp2Preface, Settings(), BrokenFrame(),
                            Random(500));
      case AttackKind::kEndlessHeaders:
        return absl::StrCat(kHttp2Preface, Settings(),
                            Http2Frame(kHttp2Headers, 0, 1, EndlessHeader()));
      case AttackKind::kHalfMessages:
      case AttackKind::kPaddedHalfMessages:
      case AttackKind::kResets:
      case AttackKind::kWholeResets:
      case AttackKind::kManyResets:
      case AttackKind::kPings:
        return absl::StrCat(kHttp2Preface, Settings());
      default:
        return "";
    }
  }

  // Of any type, with any flags, of any stream, with a length that lies or not.
  std::string BrokenFrame() {
    const uint64_t dice = random_.Bits(drawn_++);
    std::string frame = Http2Frame(
        static_cast<uint8_t>(dice % 12), static_cast<uint8_t>(dice >> 8),
        static_cast<uint32_t>(dice >> 16), Random(dice >> 56));
    if ((dice >> 55 & 1) != 0) frame[0] = '\x7f';
    return frame;
  }

  std::string Random(size_t size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random_.Bits(drawn_++));
    return bytes;
  }

  bool IsClosed(int happened, Connection* one) const {
    if (kind_ == AttackKind::kPings) {
      return (happened & (POLLHUP | POLLERR)) != 0;
    }
    char data[4096];
    ssize_t size = 0;
    do {
      size = recv(one->fd.get(), data, sizeof(data), MSG_DONTWAIT);
      if (size > 0 && one->half != nullptr) {
        one->half->Take(absl::string_view(data, static_cast<size_t>(size)));
      }
    } while (size > 0);
    return size == 0 || (errno != EAGAIN && errno != EINTR);
  }

  void SendMore(Connection* one) {
    Refill(one);
    const ssize_t sent = send(one->fd.get(), one->unsent.data(),
                              one->unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      sent_ += sent;
      one->unsent.erase(0, static_cast<size_t>(sent));
    }
    Refill(one);
  }

  void Refill(Connection* one) const {
    if (!one->unsent.empty()) return;
    if (kind_ == AttackKind::kEndlessHeaders) {
      one->unsent =
          Http2Frame(kHttp2Continuation, 0, 1, std::string(16'384, 'a'));
    }
    if (kind_ == AttackKind::kPings) one->unsent = Pings();
    if (one->half != nullptr) one->unsent = one->half->More();
    if (kind_ == AttackKind::kResets || kind_ == AttackKind::kManyResets) {
      one->unsent = BegunAndReset(&one->stream, /*whole=*/false);
    }
    if (kind_ == AttackKind::kWholeResets) {
      one->unsent = BegunAndReset(&one->stream, /*whole=*/true);
    }
  }

  const AttackKind kind_;
  const int port_;
  std::vector<Connection> connections_;
  const UniqueFd wake_;
  const CounterRandom random_{/*seed=*/1, /*stream=*/0};
  uint64_t drawn_ = 0;
  std::atomic<int64_t> opened_{0};
  std::atomic<int64_t> closed_{0};
  std::atomic<int64_t> sent_{0};
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Attack> BeginSocketAttack(AttackKind kind, int port,
                                          int connections) {
  return std::make_unique<SocketAttack>(kind, port, connections);
}

}  // namespace coxswain
