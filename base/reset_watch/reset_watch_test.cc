#include "base/reset_watch/reset_watch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/reset_watch/channelz.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using grpc_counts::Connection;
using testing::HasSubstr;

constexpr int kStreams = 8;
constexpr auto kPatience = std::chrono::seconds(60);
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(char type, char flags, uint32_t stream,
                  const std::string& payload) {
  std::string frame(9, '\0');
  frame[2] = static_cast<char>(payload.size());
  frame[3] = type;
  frame[4] = flags;
  for (int i = 0; i < 4; ++i) {
    frame[5 + i] = static_cast<char>(stream >> (24 - 8 * i));
  }
  return frame + payload;
}

std::string Header(const std::string& name, const std::string& value) {
  return absl::StrCat(std::string(1, '\0'),
                      std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

class ResetWatchTest : public testing::TestWithParam<std::string> {
 protected:
  ResetWatchTest() {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreams);
    builder.AddListeningPort(GetParam() + ":0",
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~ResetWatchTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
  }

  UniqueFd Connect() const {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port_));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(address)),
              0);
    return fd;
  }

  // Whether calls that are begun and reset are taken at last no more.
  static bool IsEndedForResets(const UniqueFd& fd) {
    const std::string headers = absl::StrCat(
        Header(":method", "POST"), Header(":scheme", "http"),
        Header(":path", "/a/b"), Header(":authority", "c"),
        Header("content-type", "application/grpc"), Header("te", "trailers"));
    std::string bytes = kPreface + Frame(4, 0, 0, "");
    const auto until = std::chrono::steady_clock::now() + kPatience;
    for (uint32_t stream = 1; std::chrono::steady_clock::now() < until;
         stream += 2) {
      bytes += Frame(1, 4, stream, headers);
      bytes += Frame(3, 0, stream, std::string("\0\0\0\x08", 4));
      if (send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
        return true;
      }
      bytes.clear();
    }
    return false;
  }

  // How a call of a client that waits for its answer ends.
  static grpc::Status Call(grpc::GenericStub* stub) {
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const auto call =
        stub->PrepareUnaryCall(&context, "/a/b", grpc::ByteBuffer(), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, stub);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  // A client may know of its end before it is counted.
  static void AwaitEnded(const ResetWatch& watch, int64_t wanted) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (watch.ended() < wanted && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    EXPECT_EQ(watch.ended(), wanted);
  }

  grpc::CallbackGenericService service_;  // all is UNIMPLEMENTED
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// IPv4, and IPv4 at a socket that is for both.
INSTANTIATE_TEST_SUITE_P(Sockets, ResetWatchTest,
                         testing::Values("127.0.0.1", "[::]"),
                         [](const auto& tested) {
                           return tested.param == "[::]" ? "Both" : "IPv4";
                         });

TEST_P(ResetWatchTest, WhoBeginsCallsAndResetsThemIsEnded) {
  testing::internal::CaptureStderr();
  const ResetWatch watch(port_, kStreams);
  EXPECT_TRUE(IsEndedForResets(Connect()));
  EXPECT_TRUE(IsEndedForResets(Connect()));
  AwaitEnded(watch, 2);
  const std::string log = testing::internal::GetCapturedStderr();
  if (GetParam() == "127.0.0.1") {  // once for an address
    EXPECT_THAT(log, HasSubstr("connection_ended peer=127.0.0.1:"));
    EXPECT_THAT(log, HasSubstr("it begins calls and resets them"));
  }
}

TEST_P(ResetWatchTest, OthersStayWhateverTheyAreAnswered) {
  const ResetWatch watch(port_, kStreams);
  grpc::GenericStub stub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials()));
  // Failures, by which it begins to look.
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(Call(&stub).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_TRUE(IsEndedForResets(Connect()));
  ASSERT_EQ(Call(&stub).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  AwaitEnded(watch, 1);
  // Its answers, errors as they are, count as answers.
  int found = 0;
  for (const auto& server : grpc_counts::ListServers()) {
    for (const auto& connection : grpc_counts::ListConnections(server.id)) {
      if (connection.local.port != port_ || connection.begun != 501) continue;
      ++found;
      EXPECT_GT(connection.answered, 490);  // as they are put away
      EXPECT_EQ(connection.broken, 0);
    }
  }
  EXPECT_EQ(found, 1);
}

TEST_P(ResetWatchTest, OtherPortsAreNotItsOwn) {
  const ResetWatch other(port_ + 1, kStreams);
  const ResetWatch watch(port_, kStreams);
  EXPECT_TRUE(IsEndedForResets(Connect()));
  EXPECT_EQ(other.ended(), 0);
  AwaitEnded(watch, 1);
}

TEST(ChannelzTest, EndpointsAreText) {
  EXPECT_EQ(TextOf(grpc_counts::Endpoint{"\x7f\x01\x02\x03", 80}),
            "127.1.2.3:80");
  EXPECT_EQ(TextOf(grpc_counts::Endpoint{std::string(15, '\0') + "\x01", 80}),
            "[::1]:80");
  EXPECT_EQ(TextOf(grpc_counts::Endpoint{}), "unknown");
}

TEST(ChannelzTest, ReadsWhatGrpcWrites) {
  const Connection connection = grpc_counts::ParseConnection(R"({"socket":{
      "data":{"streamsFailed":"1","streamsStarted":"7911"},
      "local":{"tcpip_address":{"ip_address":"fwAAAQ==","port":45671}},
      "ref":{"name":"x","socketId":"3"},
      "remote":{"tcpip_address":{
          "ip_address":"AAAAAAAAAAAAAP//fwAAAQ==","port":43982}}}})");
  EXPECT_EQ(connection.id, 3);
  EXPECT_EQ(TextOf(connection.local), "127.0.0.1:45671");
  EXPECT_EQ(TextOf(connection.remote), "127.0.0.1:43982");
  EXPECT_EQ(connection.begun, 7911);
  EXPECT_EQ(connection.answered, 0);
  EXPECT_EQ(connection.broken, 1);
}

TEST(ChannelzTest, WhatItDoesNotKnowIsNothing) {
  for (const char* const text :
       {"", "{", "[]", "7", R"({"socket":7})", R"({"socket":{"data":[1]}})",
        R"({"socket":{"remote":{"unix_address":{}}}})",
        R"({"socket":{"remote":{"tcpip_address":{"ip_address":"!"}}}})"}) {
    const Connection connection = grpc_counts::ParseConnection(text);
    EXPECT_EQ(connection.id, 0) << text;
    EXPECT_EQ(connection.remote.ip, "") << text;
  }
}

}  // namespace
}  // namespace coxswain
