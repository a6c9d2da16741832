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

}  // namespace
}  // namespace coxswain
