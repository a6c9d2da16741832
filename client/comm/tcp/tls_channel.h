#ifndef COXSWAIN_CLIENT_COMM_TCP_TLS_CHANNEL_H_
#define COXSWAIN_CLIENT_COMM_TCP_TLS_CHANNEL_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "client/comm/tcp/tls_keys.h"

namespace coxswain {

// A connection that TlsKeys encrypt. Send and Receive do the handshake, too,
// and never wait. Of a peer that has not ended the handshake no more than
// kMaxHandshakeBytes are read.
//
// The end of the connection is the end of what the peer sends, with or without
// a notice that is encrypted: the length of all that travels is known before it
// comes. What has been changed on its way is UNAVAILABLE. An error stays; one
// of the socket does of its direction, so that what the peer has sent before it
// closed the connection can be received.
//
// Threading: one thread at a time.
class TlsChannel {
 public:
  static constexpr int64_t kMaxHandshakeBytes = 4096;
  // RFC 8446 (5.5) allows 2^24.5 full records by one key, which are 388 GB:
  // Send takes another one well before: once the socket has space, or at
  // kLatest times as many. Called ends do at other times than those that call.
  static constexpr int64_t kBytesByOneKey = int64_t{1} << 36;
  static constexpr int64_t kBytesByOneKeyOfCalled = kBytesByOneKey / 4 * 3;
  static constexpr int64_t kLatest = 4;

  // Of the rank that calls `peer`, which is a lower one ...
  static absl::StatusOr<std::unique_ptr<TlsChannel>> Call(
      std::shared_ptr<const TlsKeys> keys, UniqueFd socket, int peer,
      int64_t bytes_by_one_key = kBytesByOneKey);
  // ... and of the one that is called.
  static absl::StatusOr<std::unique_ptr<TlsChannel>> Answer(
      std::shared_ptr<const TlsKeys> keys, UniqueFd socket);

  const UniqueFd& socket() const { return socket_; }

  // As SendSome; what it has not taken must come again, first and unchanged.
  absl::StatusOr<int64_t> Send(const iovec* parts, int count);
  // As ReceiveSome. Where it returns fewer bytes than were asked for, poll
  // shows when there are more.
  absl::StatusOr<int64_t> Receive(void* data, int64_t bytes);

  // Returns whether the last Send waits for what is to be received.
  bool send_waits_to_receive() const { return send_waits_to_receive_; }
  // Returns whether some of what Send has not taken may be on its way.
  bool sends_half() const { return sends_half_; }
  // Returns how many bytes Receive has without the system, as long as
  // ReadAhead was not called.
  int64_t decrypted() const;
  // Asks the system for more at a time, from now on: for large amounts.
  void ReadAhead();
  // Returns the rank at the other end; -1 before it has ended the handshake.
  int peer() const { return handshake_done_ ? end_.peer : -1; }

 private:
  friend struct TlsChannelBio;

  TlsChannel(std::shared_ptr<const TlsKeys> keys, UniqueFd socket,
             const TlsEnd& end, int64_t bytes_by_one_key);
  absl::Status Begin();
  // Returns what an outcome of OpenSSL means: OK where it has to wait, for
  // receiving if `*receives`. An error of the socket becomes that of the
  // direction.
  absl::Status Outcome(int result, bool* receives, absl::Status* direction);
  absl::Status WhyRefused() const;
  // Notes the end of the handshake.
  absl::Status CheckHandshake();
  absl::Status ChangeKeyInTime();
  // Returns the bytes of the parts behind the first `skip` that are to be one
  // record, or begin with one.
  std::pair<const char*, size_t> NextRecord(const iovec* parts, int count,
                                            int64_t skip);

  const std::shared_ptr<const TlsKeys> keys_;
  const UniqueFd socket_;
  const int64_t bytes_by_one_key_;
  TlsEnd end_;
  TlsSsl ssl_;
  // These stay: of both directions, and of one.
  absl::Status failed_;
  absl::Status send_failed_;
  absl::Status receive_failed_;
  absl::Status socket_failed_;  // of this call of OpenSSL
  bool handshake_done_ = false;
  int64_t handshake_bytes_ = 0;  // received
  // While a record is written: whether the caller has more, so that several
  // travel in one packet.
  bool more_follows_ = false;
  int64_t by_this_key_ = 0;  // sent
  bool send_waits_to_receive_ = false;
  bool sends_half_ = false;
  std::vector<char> gathered_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TLS_CHANNEL_H_
