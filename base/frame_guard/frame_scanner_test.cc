#include "base/frame_guard/frame_scanner.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(int type, uint32_t stream, size_t size) {
  std::string frame(9, '\0');
  for (int i = 0; i < 3; ++i) {
    frame[i] = static_cast<char>(size >> (16 - 8 * i));
  }
  frame[3] = static_cast<char>(type);
  for (int i = 0; i < 4; ++i) {
    frame[5 + i] = static_cast<char>(stream >> (24 - 8 * i));
  }
  return frame + std::string(size, 'x');
}
std::string Headers(uint32_t stream, size_t size = 100) {
  return Frame(1, stream, size);
}
std::string Continuation(size_t size) { return Frame(9, 1, size); }

TEST(FrameScannerTest, CountsCallsHoweverTheirBytesAreCut) {
  const std::string all =
      absl::StrCat(kPreface, Frame(4, 0, 30), Headers(1), Frame(0, 1, 70'000),
                   Headers(3), Headers(1), Frame(0, 3, 0), Headers(5));
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{100}, all.size()}) {
    FrameScanner scanner;
    for (size_t at = 0; at < all.size(); at += piece) {
      EXPECT_TRUE(scanner.Scan(absl::string_view(all).substr(at, piece)).ok());
    }
    EXPECT_EQ(scanner.calls(), 3) << piece;  // the second of 1 are trailers
  }
}

TEST(FrameScannerTest, DataMayBeAsLongAsItLikes) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(scanner.Scan(Frame(0, 1, 1 << 20)).ok());
  }
}

TEST(FrameScannerTest, HeadersOfUsualSizePassAgainAndAgain) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  for (uint32_t i = 0; i < 1000; ++i) {
    EXPECT_TRUE(scanner.Scan(Headers(2 * i + 1, 8000)).ok());
    EXPECT_TRUE(scanner.Scan(Continuation(8000)).ok());
  }
}

TEST(FrameScannerTest, HeadersThatAreTooLongAreRefused) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  EXPECT_TRUE(scanner.Scan(Headers(1, 16 << 10)).ok());
  EXPECT_TRUE(scanner.Scan(Continuation(16 << 10)).ok());
  const absl::Status status = scanner.Scan(Continuation(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "headers of a call of 32769 bytes in 3 frames; there may be 32768 "
            "in 32");
}

TEST(FrameScannerTest, ALongFrameIsRefusedBeforeItHasCome) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  EXPECT_FALSE(scanner.Scan(Headers(1, 1 << 20).substr(0, 9)).ok());
}

TEST(FrameScannerTest, HeadersInManyFramesAreRefused) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  EXPECT_TRUE(scanner.Scan(Headers(1, 1)).ok());
  for (int i = 1; i < FrameScanner::kMaxHeaderFrames; ++i) {
    EXPECT_TRUE(scanner.Scan(Continuation(0)).ok());
  }
  EXPECT_FALSE(scanner.Scan(Continuation(0)).ok());
}

// Data of a call, with these bytes.
std::string Data(uint32_t stream, const std::string& bytes) {
  return Frame(0, stream, bytes.size()).substr(0, 9) + bytes;
}
// A message of which so many bytes have come.
std::string Message(uint32_t size, size_t come) {
  std::string bytes(5, '\0');
  for (int i = 0; i < 4; ++i) {
    bytes[1 + i] = static_cast<char>(size >> (24 - 8 * i));
  }
  return bytes + std::string(come, 'm');
}
std::string Reset(uint32_t stream) { return Frame(3, stream, 4); }

TEST(FrameScannerTest, AMessageIsHeldUntilItIsWhole) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  EXPECT_TRUE(scanner.Scan(Headers(1) + Data(1, Message(10, 10))).ok());
  EXPECT_EQ(scanner.held_bytes(), 10);  // the first, which a call may wait with
  EXPECT_TRUE(scanner.Scan(Data(1, Message(1000, 700))).ok());
  EXPECT_EQ(scanner.held_bytes(), 710);
  EXPECT_TRUE(scanner.Scan(Data(1, std::string(300, 'm'))).ok());
  EXPECT_EQ(scanner.held_bytes(), 10);
}

TEST(FrameScannerTest, MessagesAreFollowedHoweverTheyAreCut) {
  // Three of them, one empty, in frames that end anywhere, beside another call.
  const std::string messages = absl::StrCat(Message(10, 10), Message(0, 0),
                                            Message(300, 300), Message(50, 20));
  for (const size_t frame : {size_t{1}, size_t{3}, size_t{17}, size_t{1000}}) {
    std::string all = absl::StrCat(kPreface, Headers(1), Headers(3));
    for (size_t at = 0; at < messages.size(); at += frame) {
      all += Data(1, messages.substr(at, frame)) + Data(3, "");
    }
    for (const size_t piece : {size_t{1}, size_t{7}, all.size()}) {
      FrameScanner scanner;
      for (size_t at = 0; at < all.size(); at += piece) {
        EXPECT_TRUE(
            scanner.Scan(absl::string_view(all).substr(at, piece)).ok());
      }
      EXPECT_EQ(scanner.held_bytes(), 30) << frame << " " << piece;
      EXPECT_EQ(scanner.open_calls(), 2);
    }
  }
}

TEST(FrameScannerTest, WhatEndsLetsGo) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  for (const uint32_t stream : {1, 3, 5}) {
    EXPECT_TRUE(scanner.Scan(Headers(stream)).ok());
    EXPECT_TRUE(scanner.Scan(Data(stream, Message(9, 9))).ok());
    EXPECT_TRUE(scanner.Scan(Data(stream, Message(9, 1))).ok());
  }
  EXPECT_EQ(scanner.held_bytes(), 30);
  EXPECT_TRUE(scanner.Scan(Reset(3)).ok());
  EXPECT_EQ(scanner.held_bytes(), 20);
  EXPECT_EQ(scanner.open_calls(), 2);
  scanner.EndCall(1);
  EXPECT_EQ(scanner.held_bytes(), 10);
  // What the client sends before it knows.
  EXPECT_TRUE(scanner.Scan(Data(1, Message(9, 9)) + Reset(1)).ok());
  scanner.EndCall(1);
  EXPECT_EQ(scanner.held_bytes(), 10);
  EXPECT_EQ(scanner.open_calls(), 1);
  EXPECT_EQ(scanner.resets(), 1);
  EXPECT_EQ(scanner.calls(), 3);
}

TEST(FrameScannerTest, ACallThatEndsWithinAFrameTakesItsRestWithIt) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  const std::string frame = Data(1, Message(1000, 1000));
  EXPECT_TRUE(scanner.Scan(Headers(1) + frame.substr(0, 500)).ok());
  scanner.EndCall(1);
  EXPECT_TRUE(scanner.Scan(frame.substr(500) + Headers(3)).ok());
  EXPECT_EQ(scanner.held_bytes(), 0);
  EXPECT_EQ(scanner.open_calls(), 1);
}

TEST(FrameScannerTest, CallsUnderWayAreLimited) {
  FrameScanner scanner;
  EXPECT_TRUE(scanner.Scan(kPreface).ok());
  for (uint32_t i = 0; i < FrameScanner::kMaxCalls; ++i) {
    ASSERT_TRUE(scanner.Scan(Headers(2 * i + 1, 1)).ok());
  }
  const uint32_t next = 2 * FrameScanner::kMaxCalls + 1;
  EXPECT_EQ(scanner.Scan(Headers(next, 1)).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace coxswain
