#include "client/comm/tcp/tls_channel.h"

#include <openssl/err.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/comm/tcp/tls_ends_for_test.h"

namespace coxswain {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(TlsChannelTest, BytesArriveAsTheyWereSent) {
  for (const bool ahead : {false, true}) {
    Open();
    EXPECT_EQ(called_->peer(), -1);
    EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
    EXPECT_EQ(called_->peer(), 1);
    EXPECT_EQ(caller_->peer(), 0);
    if (ahead) {
      caller_->ReadAhead();
      called_->ReadAhead();
    }
    for (const size_t bytes : {1, 40, 16384, 16385, 70000, 300001}) {
      const std::string text = Text(bytes);
      for (const size_t head : {0, 1, 40, 16384, 40000}) {
        const size_t first = std::min(head, bytes);
        EXPECT_TRUE(Move(caller_.get(), called_.get(), text, first) == text);
        EXPECT_TRUE(Move(called_.get(), caller_.get(), text, first) == text);
      }
    }
  }
}

TEST_F(TlsChannelTest, OfAStrangerOnlySoMuchIsRead) {
  Open();
  // A greeting of TLS that does not end.
  std::string bytes("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03", 11);
  bytes.resize(8000);
  const iovec part = {bytes.data(), bytes.size()};
  char buffer[16];
  absl::StatusOr<int64_t> received = 0;
  size_t sent_bytes = 0;
  for (int i = 0; i < 100 && received.ok(); ++i) {
    const iovec rest = {bytes.data() + sent_bytes, part.iov_len - sent_bytes};
    const auto sent = SendSome(caller_->socket(), &rest, 1);
    if (sent.ok()) sent_bytes += static_cast<size_t>(*sent);
    received = called_->Receive(buffer, sizeof(buffer));
  }
  EXPECT_THAT(received, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("more than a handshake")));
  EXPECT_THAT(called_->Receive(buffer, sizeof(buffer)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("")));
}

TEST_F(TlsChannelTest, TheEndOfTheConnectionIsTheEnd) {
  Open();
  EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
  char letters[] = "last";
  const iovec part = {letters, 4};
  EXPECT_OK(caller_->Send(&part, 1));
  EndSendingTcp(caller_->socket());
  char buffer[16];
  const auto received = called_->Receive(buffer, sizeof(buffer));
  ASSERT_OK(received);
  EXPECT_EQ(*received, 4);
  EXPECT_THAT(called_->Receive(buffer, sizeof(buffer)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("it closed the connection")));
}

TEST_F(TlsChannelTest, WhatHasArrivedIsReceivedAfterASendHasFailed) {
  Open();
  EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
  char letters[] = "last";
  const iovec part = {letters, 4};
  EXPECT_OK(caller_->Send(&part, 1));
  caller_.reset();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(called_->Send(&part, 1),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("sending")));
  }
  char buffer[16];
  EXPECT_EQ(called_->Receive(buffer, sizeof(buffer)).value_or(-1), 4);
  EXPECT_THAT(called_->Receive(buffer, sizeof(buffer)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("it closed the connection")));
}

TEST_F(TlsChannelTest, ErrorsAreNotLeftInTheQueueOfTheThread) {
  Open();
  EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
  std::string record("\x17\x03\x03\x00\x20", 5);
  record.resize(5 + 0x20, 'x');
  const iovec part = {record.data(), record.size()};
  EXPECT_OK(SendSome(caller_->socket(), &part, 1));
  char buffer[16];
  EXPECT_THAT(called_->Receive(buffer, sizeof(buffer)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("changed on its way")));
  EXPECT_EQ(ERR_peek_error(), 0u);
}

TEST_F(TlsChannelTest, AnEndThatSendsNothingMoreStillReceives) {
  Open();
  EXPECT_EQ(Move(caller_.get(), called_.get(), "hello", 2), "hello");
  EndSendingTcp(caller_->socket());
  char buffer[16];
  EXPECT_THAT(called_->Receive(buffer, sizeof(buffer)), Not(IsOk()));
  EXPECT_EQ(Move(called_.get(), caller_.get(), "answer", 2), "answer");
}

}  // namespace
}  // namespace coxswain
