#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tests/bench/bulk/bulk_peers.h"

namespace coxswain::bench {
namespace {

constexpr size_t kPiece = 1 << 20;

// What goes before the bytes: how many come, or that they are wanted back.
constexpr int64_t kBack = -1;

absl::Status WriteAll(int fd, const char* data, size_t count) {
  while (count > 0) {
    const ssize_t written = write(fd, data, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return absl::ErrnoToStatus(errno, "write");
    data += written;
    count -= written;
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, char* data, size_t count) {
  while (count > 0) {
    const ssize_t got = read(fd, data, count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "read");
    if (got == 0) return absl::DataLossError("the stream ended");
    data += got;
    count -= got;
  }
  return absl::OkStatus();
}

// The other side, with a file or without.
class TcpServer {
 public:
  TcpServer(int socket, std::string file)
      : socket_(socket), file_(std::move(file)), piece_(kPiece) {}

  absl::Status Serve() {
    while (true) {
      int64_t count = 0;
      COXSWAIN_RETURN_IF_ERROR(
          ReadAll(socket_, reinterpret_cast<char*>(&count), sizeof(count)));
      COXSWAIN_RETURN_IF_ERROR(count == kBack ? Send() : Take(count));
    }
  }

 private:
  UniqueFd Open(int flags) const {
    if (file_.empty()) return UniqueFd();
    return UniqueFd(open(file_.c_str(), flags | O_CLOEXEC, 0600));
  }

  absl::Status Take(int64_t count) {
    const UniqueFd file = Open(O_WRONLY | O_CREAT | O_TRUNC);
    size_ = count;
    while (count > 0) {
      const size_t piece = std::min<int64_t>(count, kPiece);
      const ssize_t got = read(socket_, piece_.data(), piece);
      if (got <= 0) return absl::DataLossError("the stream ended");
      if (!file_.empty()) {
        COXSWAIN_RETURN_IF_ERROR(WriteAll(file.get(), piece_.data(), got));
      }
      count -= got;
    }
    return WriteAll(socket_, "!", 1);
  }

  absl::Status Send() {
    const UniqueFd file = Open(O_RDONLY);
    for (int64_t left = size_; left > 0;) {
      const size_t piece = std::min<int64_t>(left, kPiece);
      if (!file_.empty()) {
        COXSWAIN_RETURN_IF_ERROR(ReadAll(file.get(), piece_.data(), piece));
      }
      COXSWAIN_RETURN_IF_ERROR(WriteAll(socket_, piece_.data(), piece));
      left -= static_cast<int64_t>(piece);
    }
    return absl::OkStatus();
  }

  const int socket_;
  const std::string file_;
  std::vector<char> piece_;
  int64_t size_ = 0;
};

class Tcp : public BulkPeer {
 public:
  explicit Tcp(UniqueFd socket) : socket_(std::move(socket)) {}

  absl::Status Put(absl::string_view bytes) override {
    COXSWAIN_RETURN_IF_ERROR(SendCount(static_cast<int64_t>(bytes.size())));
    for (size_t at = 0; at < bytes.size(); at += kPiece) {
      const absl::string_view piece = bytes.substr(at, kPiece);
      COXSWAIN_RETURN_IF_ERROR(
          WriteAll(socket_.get(), piece.data(), piece.size()));
    }
    char done = 0;
    return ReadAll(socket_.get(), &done, 1);
  }

  absl::Status Get(NewBytes* bytes) override {
    COXSWAIN_RETURN_IF_ERROR(SendCount(kBack));
    for (size_t at = 0; at < bytes->size; at += kPiece) {
      COXSWAIN_RETURN_IF_ERROR(ReadAll(socket_.get(), bytes->data.get() + at,
                                       std::min(kPiece, bytes->size - at)));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status SendCount(int64_t count) {
    return WriteAll(socket_.get(), reinterpret_cast<char*>(&count),
                    sizeof(count));
  }

  const UniqueFd socket_;
};

absl::StatusOr<UniqueFd> Listen(sockaddr_in* address) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  *address = {};
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(*address);
  auto* generic = reinterpret_cast<sockaddr*>(address);
  if (bind(listener.get(), generic, size) != 0 ||
      listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), generic, &size) != 0) {
    return absl::ErrnoToStatus(errno, "listen");
  }
  return listener;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BulkPeer>> StartTcp(const std::string& file) {
  sockaddr_in address;
  COXSWAIN_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(&address));
  const pid_t child = fork();
  if (child < 0) return absl::ErrnoToStatus(errno, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
    TcpServer(peer.get(), file).Serve().IgnoreError();
    _exit(0);
  }
  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(client.get(), reinterpret_cast<sockaddr*>(&address),
              sizeof(address)) != 0) {
    return absl::ErrnoToStatus(errno, "connect");
  }
  return std::make_unique<Tcp>(std::move(client));
}

}  // namespace coxswain::bench
