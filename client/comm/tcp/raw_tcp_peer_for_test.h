#ifndef COXSWAIN_CLIENT_COMM_TCP_RAW_TCP_PEER_FOR_TEST_H_
#define COXSWAIN_CLIENT_COMM_TCP_RAW_TCP_PEER_FOR_TEST_H_

#include <poll.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "client/comm/collective_header.h"
#include "client/comm/communicator.h"
#include "client/comm/tcp/control_stream.h"
#include "client/comm/tcp/hello.h"
#include "client/comm/tcp/lookup.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/wire.h"

namespace coxswain {

// Rank 1 of a group of two, by sockets alone, so that it can misbehave.
class RawTcpPeer {
 public:
  // Reads where rank 0 is.
  explicit RawTcpPeer(const CommunicatorOptions& group) : group_(group) {
    auto text = group.store->Get(PlaceLookup::Key(group, 0), absl::Minutes(1));
    COXSWAIN_CHECK(text.ok());
    auto place = DecodePlace(*text);
    COXSWAIN_CHECK(place.ok());
    place_ = *place;
  }

  const TcpPlace& place() const { return place_; }

  // Returns the hello of a connection as it should be.
  TcpHello Hello(uint32_t index) const {
    TcpHello hello;
    hello.communicator = StableHash(group_.id);
    hello.call_token = place_.call_token;
    hello.host = place_.host;
    hello.size = 2;
    hello.from = 1;
    hello.to = 0;
    hello.index = index;
    hello.count = 2;
    return hello;
  }

  // Connects, and sends these bytes.
  UniqueFd Call(absl::string_view bytes) const {
    auto socket = BeginConnectTcp(place_.address);
    COXSWAIN_CHECK(socket.ok());
    Write(*socket, bytes);
    return *std::move(socket);
  }
  UniqueFd Call(const TcpHello& hello) const {
    const TcpHelloBytes bytes = Encode(hello);
    return Call(absl::string_view(bytes.data(), bytes.size()));
  }

  // Connects as it should be.
  void Meet() {
    control = Call(Hello(0));
    data = Call(Hello(1));
    Read(control, sizeof(TcpAnswerBytes));
    Read(data, sizeof(TcpAnswerBytes));
  }

  // Returns a control frame as it travels, without the bytes behind it.
  static std::string Encoded(const ControlFrame& frame) {
    std::string text(ControlFrame::kFixed, '\0');
    char* at = PutLittleEndian(static_cast<uint32_t>(frame.kind), text.data());
    at = PutLittleEndian(frame.tag, at);
    at = PutLittleEndian(frame.id, at);
    at = PutLittleEndian(frame.bytes, at);
    const CollectiveHeaderBytes header = Encode(frame.header);
    std::memcpy(at, header.data(), header.size());
    return text;
  }

  // Returns the frame by which a rank begins this, with so many bytes of data
  // announced.
  static std::string Opening(const CollectiveHeader& header, uint32_t bytes) {
    std::string frame = "CXCO....";
    PutLittleEndian(bytes, frame.data() + 4);
    const CollectiveHeaderBytes encoded = Encode(header);
    return frame + std::string(encoded.data(), encoded.size());
  }

  static void Write(const UniqueFd& socket, absl::string_view bytes) {
    while (!bytes.empty()) {
      Await(socket, POLLOUT);
      const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
      const auto sent = SendSome(socket, &part, 1);
      if (!sent.ok()) return;
      bytes.remove_prefix(static_cast<size_t>(*sent));
    }
  }

  // Returns so many bytes; fewer at the end of the connection.
  static std::string Read(const UniqueFd& socket, size_t bytes) {
    std::string text(bytes, '\0');
    size_t read = 0;
    while (read < bytes) {
      Await(socket, POLLIN);
      const auto received = ReceiveSome(socket, text.data() + read,
                                        static_cast<int64_t>(bytes - read));
      if (!received.ok()) break;
      read += static_cast<size_t>(*received);
    }
    text.resize(read);
    return text;
  }

  UniqueFd control;
  UniqueFd data;

 private:
  static void Await(const UniqueFd& socket, short events) {
    std::vector<pollfd> entries = {{socket.get(), events, 0}};
    PollUntil(&entries, Clock::Real()->Now() + absl::Seconds(20));
  }

  const CommunicatorOptions group_;
  TcpPlace place_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_TCP_RAW_TCP_PEER_FOR_TEST_H_
