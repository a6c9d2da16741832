#include "server/http/request_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace coxswain::server {
namespace {

// How long a stop may go unnoticed.
constexpr absl::Duration kLook = absl::Milliseconds(100);

bool WouldBlock() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

RequestStream::RequestStream(int socket, const Limits& limits,
                             const Clock* clock, const std::atomic<bool>* stop)
    : socket_(socket),
      limits_(limits),
      clock_(clock),
      stop_(stop),
      deadline_(clock->Now() + limits.time) {}

bool RequestStream::Await(short events) {
  while (!failed_ && !stop_->load()) {
    const absl::Duration left = deadline_ - clock_->Now();
    if (left <= absl::ZeroDuration()) break;
    pollfd entry = {socket_, events, 0};
    const auto wait = std::min(left, kLook) + absl::Milliseconds(1);
    const int ready =
        poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) break;
  }
  failed_ = true;
  return false;
}

ssize_t RequestStream::Fill() {
  if (taken_ >= limits_.bytes) failed_ = true;
  while (Await(POLLIN)) {
    const size_t most = std::min(buffer_.size(), limits_.bytes - taken_);
    const ssize_t got = recv(socket_, buffer_.data(), most, 0);
    if (got < 0 && WouldBlock()) continue;
    if (got <= 0) return got;
    taken_ += static_cast<size_t>(got);
    begin_ = 0;
    end_ = static_cast<size_t>(got);
    return got;
  }
  return -1;
}

ssize_t RequestStream::read(char* to, size_t size) {
  if (begin_ == end_) {
    const ssize_t got = Fill();
    if (got <= 0) return got;
  }
  const size_t count = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t RequestStream::write(const char* from, size_t size) {
  if (!answering_) {
    answering_ = true;
    // Why a request was refused may be said, although no more is read of it.
    failed_ = false;
    deadline_ = clock_->Now() + limits_.time;
  }
  while (Await(POLLOUT)) {
    const ssize_t sent = send(socket_, from, size, MSG_NOSIGNAL);
    if (sent < 0 && WouldBlock()) continue;
    if (sent < 0) failed_ = true;
    return sent;
  }
  return -1;
}

void RequestStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void RequestStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

}  // namespace coxswain::server
