#ifndef COXSWAIN_CLIENT_COMM_TCP_HELLO_H_
#define COXSWAIN_CLIENT_COMM_TCP_HELLO_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/tcp/tcp_socket.h"

namespace coxswain {

// What a rank publishes in the store of its group: where it listens, and two
// random numbers. A rank that calls shows the first, and the one that is called
// answers with the second, so that neither takes a process of another
// communicator, or of another generation, which has the same address, for its
// peer. They are no protection against who can read the store or the network;
// TlsKeys are.
struct TcpPlace {
  TcpAddress address;
  uint64_t call_token = 0;
  uint64_t answer_token = 0;
  uint64_t host = 0;  // a hash of HostIdentity()
  bool encrypts = false;
};
std::string EncodePlace(const TcpPlace& place);
absl::StatusOr<TcpPlace> DecodePlace(absl::string_view text);

// The first bytes of a connection, from the rank that calls.
struct TcpHello {
  uint64_t communicator = 0;  // a hash of its id
  uint64_t call_token = 0;    // of the rank that is called
  uint64_t host = 0;          // of the caller
  uint32_t size = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t index = 0;  // which of the pair's connections this is
  uint32_t count = 0;  // how many the pair has
};

// As it travels: integers in little endian, after eight letters that name the
// protocol and its version.
using TcpHelloBytes = std::array<char, 56>;
TcpHelloBytes Encode(const TcpHello& hello);
// nullopt where the bytes are no hello of this version.
std::optional<TcpHello> DecodeHello(const TcpHelloBytes& bytes);

// The answer: other letters, and the token.
using TcpAnswerBytes = std::array<char, 16>;
TcpAnswerBytes EncodeAnswer(uint64_t answer_token);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_HELLO_H_
