#include "client/comm/tcp/tls_channel.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/tcp/tcp_socket.h"

namespace coxswain {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr size_t kAheadBytes = 128 << 10;

}  // namespace

// How OpenSSL reads and writes: by tcp_socket.h, whose error is kept.
struct TlsChannelBio {
  static TlsChannel* Of(BIO* bio) {
    return static_cast<TlsChannel*>(BIO_get_data(bio));
  }

  static int Write(BIO* bio, const char* data, int bytes) {
    BIO_clear_retry_flags(bio);
    TlsChannel* const channel = Of(bio);
    const iovec part = {const_cast<char*>(data), static_cast<size_t>(bytes)};
    const auto sent =
        SendSome(channel->socket_, &part, 1, channel->more_follows_);
    if (sent.ok() && *sent > 0) return static_cast<int>(*sent);
    channel->socket_failed_ = sent.status();
    if (sent.ok()) BIO_set_retry_write(bio);
    return -1;
  }

  static int Read(BIO* bio, char* data, int bytes) {
    BIO_clear_retry_flags(bio);
    TlsChannel* const channel = Of(bio);
    int64_t most = bytes;
    // Messages behind the handshake are such a state, too.
    const bool shakes_hands = !channel->handshake_done_ &&
                              SSL_is_init_finished(channel->ssl_.get()) != 1;
    if (shakes_hands) {
      most = std::min(
          most, TlsChannel::kMaxHandshakeBytes - channel->handshake_bytes_);
      if (most <= 0) {
        channel->socket_failed_ =
            absl::ResourceExhaustedError("it sent more than a handshake has");
        return -1;
      }
    }
    const auto received = ReceiveSome(channel->socket_, data, most);
    if (received.ok() && *received > 0) {
      if (shakes_hands) channel->handshake_bytes_ += *received;
      return static_cast<int>(*received);
    }
    channel->socket_failed_ = received.status();
    if (received.ok()) BIO_set_retry_read(bio);
    return -1;
  }

  static long Control(BIO* /*bio*/, int command, long /*number*/,
                      void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* const made = BIO_meth_new(
          BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "coxswain socket");
      BIO_meth_set_write(made, Write);
      BIO_meth_set_read(made, Read);
      BIO_meth_set_ctrl(made, Control);
      return made;
    }();
    return method;
  }
};

TlsChannel::TlsChannel(std::shared_ptr<const TlsKeys> keys, UniqueFd socket,
                       const TlsEnd& end, int64_t bytes_by_one_key)
    : keys_(std::move(keys)),
      socket_(std::move(socket)),
      bytes_by_one_key_(bytes_by_one_key),
      end_(end) {}

absl::StatusOr<std::unique_ptr<TlsChannel>> TlsChannel::Call(
    std::shared_ptr<const TlsKeys> keys, UniqueFd socket, int peer,
    int64_t bytes_by_one_key) {
  TlsEnd end;
  end.calls = true;
  end.peer = peer;
  std::unique_ptr<TlsChannel> channel(new TlsChannel(
      std::move(keys), std::move(socket), end, bytes_by_one_key));
  COXSWAIN_RETURN_IF_ERROR(channel->Begin());
  return channel;
}

absl::StatusOr<std::unique_ptr<TlsChannel>> TlsChannel::Answer(
    std::shared_ptr<const TlsKeys> keys, UniqueFd socket) {
  std::unique_ptr<TlsChannel> channel(new TlsChannel(
      std::move(keys), std::move(socket), TlsEnd(), kBytesByOneKeyOfCalled));
  COXSWAIN_RETURN_IF_ERROR(channel->Begin());
  return channel;
}

absl::Status TlsChannel::Begin() {
  COXSWAIN_ASSIGN_OR_RETURN(ssl_, keys_->Begin(&end_));
  BIO* const bio = BIO_new(TlsChannelBio::Method());
  if (bio == nullptr) return absl::ResourceExhaustedError("no memory");
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  return absl::OkStatus();
}

absl::Status TlsChannel::Outcome(int result, bool* receives,
                                 absl::Status* direction) {
  const int error = SSL_get_error(ssl_.get(), result);
  *receives = error == SSL_ERROR_WANT_READ;
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    return absl::OkStatus();
  }
  if (!socket_failed_.ok()) {
    *direction = socket_failed_;
  } else if (error == SSL_ERROR_ZERO_RETURN) {
    *direction = absl::UnavailableError("it closed the connection");
  } else {
    return failed_ = WhyRefused();
  }
  // Other users of OpenSSL in this thread would take what is left for theirs.
  ERR_clear_error();
  return *direction;
}

absl::Status TlsChannel::WhyRefused() const {
  if (handshake_done_) {
    return absl::UnavailableError(absl::StrCat(
        "what travels was changed on its way, or one end has lost its place: ",
        TlsReason()));
  }
  return absl::UnavailableError(absl::StrCat(
      "the two do not have the same key: it is of another job, another "
      "generation or another communicator, or no worker at all (",
      TlsReason(), ")"));
}

absl::Status TlsChannel::CheckHandshake() {
  if (handshake_done_ || SSL_is_init_finished(ssl_.get()) != 1) {
    return absl::OkStatus();
  }
  // By the key: a called end could have shown a certificate.
  if (SSL_session_reused(ssl_.get()) != 1) return failed_ = WhyRefused();
  handshake_done_ = true;
  return absl::OkStatus();
}

absl::Status TlsChannel::ChangeKeyInTime() {
  if (by_this_key_ < bytes_by_one_key_ || sends_half_) return absl::OkStatus();
  // Nothing is received while the message that changes it waits for room; two
  // ends that both do would wait for ever.
  pollfd room = {socket_.get(), POLLOUT, 0};
  if (by_this_key_ / kLatest < bytes_by_one_key_ && poll(&room, 1, 0) != 1) {
    return absl::OkStatus();
  }
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
    return failed_ = absl::InternalError(
               absl::StrCat("OpenSSL changes no key: ", TlsReason()));
  }
  by_this_key_ = 0;
  return absl::OkStatus();
}

std::pair<const char*, size_t> TlsChannel::NextRecord(const iovec* parts,
                                                      int count, int64_t skip) {
  auto at = static_cast<size_t>(skip);
  while (count > 0 && at >= parts->iov_len) {
    at -= parts->iov_len;
    ++parts;
    --count;
  }
  if (count == 0) return {nullptr, 0};
  const char* const first = static_cast<const char*>(parts->iov_base) + at;
  const size_t left = parts->iov_len - at;
  if (count == 1 || left >= kRecordBytes) return {first, left};
  gathered_.assign(first, first + left);
  for (int i = 1; i < count && gathered_.size() < kRecordBytes; ++i) {
    const char* const more = static_cast<const char*>(parts[i].iov_base);
    gathered_.insert(
        gathered_.end(), more,
        more + std::min(parts[i].iov_len, kRecordBytes - gathered_.size()));
  }
  return {gathered_.data(), gathered_.size()};
}

absl::StatusOr<int64_t> TlsChannel::Send(const iovec* parts, int count) {
  if (!failed_.ok()) return failed_;
  if (!send_failed_.ok()) return send_failed_;
  int64_t total = 0;
  send_waits_to_receive_ = false;
  while (true) {
    const auto [data, bytes] = NextRecord(parts, count, total);
    if (bytes == 0) return total;
    ERR_clear_error();
    socket_failed_ = absl::OkStatus();
    COXSWAIN_RETURN_IF_ERROR(ChangeKeyInTime());
    size_t sent = 0;
    more_follows_ = bytes > kRecordBytes;
    const int result = SSL_write_ex(ssl_.get(), data, bytes, &sent);
    more_follows_ = false;
    COXSWAIN_RETURN_IF_ERROR(CheckHandshake());
    if (result == 1) {
      sends_half_ = false;
      by_this_key_ += static_cast<int64_t>(sent);
      total += static_cast<int64_t>(sent);
      continue;
    }
    const absl::Status status =
        Outcome(result, &send_waits_to_receive_, &send_failed_);
    // The error comes with the next call.
    if (!status.ok() && total == 0) return status;
    sends_half_ = handshake_done_;
    return total;
  }
}

absl::StatusOr<int64_t> TlsChannel::Receive(void* data, int64_t bytes) {
  if (!failed_.ok()) return failed_;
  if (!receive_failed_.ok()) return receive_failed_;
  int64_t total = 0;
  while (total < bytes) {
    ERR_clear_error();
    socket_failed_ = absl::OkStatus();
    size_t received = 0;
    const int result =
        SSL_read_ex(ssl_.get(), static_cast<char*>(data) + total,
                    static_cast<size_t>(bytes - total), &received);
    COXSWAIN_RETURN_IF_ERROR(CheckHandshake());
    if (result == 1) {
      total += static_cast<int64_t>(received);
      continue;
    }
    bool receives = false;
    const absl::Status status = Outcome(result, &receives, &receive_failed_);
    if (!status.ok() && total == 0) return status;
    break;
  }
  return total;
}

int64_t TlsChannel::decrypted() const { return SSL_pending(ssl_.get()); }

void TlsChannel::ReadAhead() {
  SSL_set_default_read_buffer_len(ssl_.get(), kAheadBytes);
  SSL_set_read_ahead(ssl_.get(), 1);
  SSL_free_buffers(ssl_.get());
}

}  // namespace coxswain
