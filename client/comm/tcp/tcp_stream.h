#ifndef COXSWAIN_CLIENT_COMM_TCP_TCP_STREAM_H_
#define COXSWAIN_CLIENT_COMM_TCP_TCP_STREAM_H_

#include <poll.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/tcp/tls_channel.h"

namespace coxswain {

// One end of a connection between two ranks, in plain text or encrypted; none
// by default. Never waits.
//
// Threading: one thread at a time, but for EndSending.
class TcpStream {
 public:
  TcpStream() = default;
  explicit TcpStream(UniqueFd socket) : socket_(std::move(socket)) {}

  // Encrypts from the first byte on. Before anything else.
  absl::Status Encrypt(std::shared_ptr<const TlsKeys> keys, int peer) {
    return Take(TlsChannel::Call(std::move(keys), std::move(socket_), peer));
  }
  absl::Status EncryptCalled(std::shared_ptr<const TlsKeys> keys) {
    return Take(TlsChannel::Answer(std::move(keys), std::move(socket_)));
  }

  bool valid() const { return socket().valid(); }
  int fd() const { return socket().get(); }
  const UniqueFd& socket() const { return tls_ ? tls_->socket() : socket_; }

  // As SendSome and ReceiveSome; see TlsChannel.
  absl::StatusOr<int64_t> Send(const iovec* parts, int count) {
    return tls_ ? tls_->Send(parts, count) : SendSome(socket_, parts, count);
  }
  absl::StatusOr<int64_t> Receive(void* data, int64_t bytes) {
    return tls_ ? tls_->Receive(data, bytes)
                : ReceiveSome(socket_, data, bytes);
  }

  // What to poll for after a Send that took nothing.
  short events_to_send() const {
    return tls_ && tls_->send_waits_to_receive() ? POLLIN : POLLOUT;
  }
  // See TlsChannel.
  bool sends_half() const { return tls_ && tls_->sends_half(); }
  int64_t decrypted() const { return tls_ ? tls_->decrypted() : 0; }
  void ReadAhead() {
    if (tls_) tls_->ReadAhead();
  }
  // Whether the rank at the other end may be this one: an encrypted connection
  // has shown which it is.
  bool MayBe(int peer) const { return !tls_ || tls_->peer() == peer; }

  // As EndSendingTcp. Any thread.
  void EndSending() const { EndSendingTcp(socket()); }

 private:
  absl::Status Take(absl::StatusOr<std::unique_ptr<TlsChannel>> tls) {
    COXSWAIN_ASSIGN_OR_RETURN(tls_, std::move(tls));
    return absl::OkStatus();
  }

  // One of them.
  UniqueFd socket_;
  std::unique_ptr<TlsChannel> tls_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TCP_STREAM_H_
