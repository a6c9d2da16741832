#ifndef COXSWAIN_CLIENT_COMM_TCP_TLS_ENDS_FOR_TEST_H_
#define COXSWAIN_CLIENT_COMM_TCP_TLS_ENDS_FOR_TEST_H_

#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status_matchers.h"
#include "client/comm/communicator.h"
#include "client/comm/data_key.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/tcp/tls_channel.h"
#include "client/comm/tcp/tls_keys.h"
#include "gtest/gtest.h"

namespace coxswain {

// Returns what rank 0 or 1 of a group of two has for encryption.
inline std::shared_ptr<const TlsKeys> KeysOfRank(int rank) {
  CommunicatorOptions options;
  options.id = "world/7";
  options.rank = rank;
  options.size = 2;
  options.data_key =
      std::make_shared<DataKey>("mnist", 7, std::string(DataKey::kBytes, 'k'));
  auto keys = TlsKeys::Make(options);
  EXPECT_OK(keys);
  return *std::move(keys);
}

// Returns both ends of a connection, of whose bytes so many fit into the
// system, or twice as many.
inline std::pair<UniqueFd, UniqueFd> SocketPair(int bytes = 4096) {
  int fds[2] = {-1, -1};
  EXPECT_EQ(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
      0);
  for (const int fd : fds) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Both ends of an encrypted connection.
class TlsChannelTest : public testing::Test {
 protected:
  void Open(int64_t bytes_by_one_key = TlsChannel::kBytesByOneKey) {
    auto [first, second] = SocketPair();
    auto caller =
        TlsChannel::Call(KeysOfRank(1), std::move(first), 0, bytes_by_one_key);
    auto called = TlsChannel::Answer(KeysOfRank(0), std::move(second));
    ASSERT_OK(caller);
    ASSERT_OK(called);
    caller_ = *std::move(caller);
    called_ = *std::move(called);
  }

  // Sends a text in two parts, and returns what arrives of it.
  static std::string Move(TlsChannel* from, TlsChannel* to,
                          const std::string& text, size_t head) {
    std::string received(text.size(), '\0');
    size_t sent_bytes = 0;
    size_t received_bytes = 0;
    while (received_bytes < text.size()) {
      const size_t of_head = std::min(sent_bytes, head);
      const size_t of_rest = sent_bytes - of_head;
      const iovec parts[] = {
          {const_cast<char*>(text.data()) + of_head, head - of_head},
          {const_cast<char*>(text.data()) + head + of_rest,
           text.size() - head - of_rest}};
      const auto sent = from->Send(parts, 2);
      EXPECT_OK(sent);
      const auto got =
          to->Receive(received.data() + received_bytes,
                      static_cast<int64_t>(received.size() - received_bytes));
      EXPECT_OK(got);
      if (!sent.ok() || !got.ok()) break;
      sent_bytes += static_cast<size_t>(*sent);
      received_bytes += static_cast<size_t>(*got);
    }
    return received;
  }

  static std::string Text(size_t bytes) {
    std::string text(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 / 3);
    return text;
  }

  std::unique_ptr<TlsChannel> caller_;
  std::unique_ptr<TlsChannel> called_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_TLS_ENDS_FOR_TEST_H_
