#include "client/elastic/catch_up/frame.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::catch_up {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(CatchUpFrameTest, AHeaderComesBack) {
  Header header;
  header.kind = Kind::kState;
  header.flags = kLast;
  header.progress = 41;
  header.number = 7;
  header.bytes = kPieceBytes;
  ASSERT_OK_AND_ASSIGN(const Header decoded, Decode(Encode(header)));
  EXPECT_EQ(decoded.kind, Kind::kState);
  EXPECT_EQ(decoded.flags, kLast);
  EXPECT_EQ(decoded.progress, 41);
  EXPECT_EQ(decoded.number, 7);
  EXPECT_EQ(decoded.bytes, kPieceBytes);
}

TEST(CatchUpFrameTest, AnyOtherByteIsNoticed) {
  const std::string bytes = Encode(Header());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 16);
    EXPECT_THAT(Decode(damaged),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("header")))
        << i;
  }
  EXPECT_THAT(Decode(bytes.substr(1)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("header")));
}

TEST(CatchUpFrameTest, MoreBytesThanThereMayBeAreRefused) {
  Header header;
  header.bytes = kMaxSmallBytes + 1;
  EXPECT_THAT(Decode(Encode(header)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("header")));
  header.bytes = -1;
  EXPECT_THAT(Decode(Encode(header)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("header")));
}

TEST(CatchUpFrameTest, PiecesGoOverTheEndsOfTensors) {
  std::vector<double> large(kPieceBytes / 8 + 2);
  std::vector<double> small(3);
  const auto span = [](std::vector<double>* of) {
    return Span{of->data(), static_cast<int64_t>(of->size()), DType::kFloat64,
                Device()};
  };
  std::vector<double> none;
  const PiecesOf pieces({span(&small), span(&none), span(&large)});
  EXPECT_EQ(pieces.bytes(), kPieceBytes + 40);
  ASSERT_EQ(pieces.pieces(), 2);
  EXPECT_EQ(pieces.SizeOf(0), kPieceBytes);
  EXPECT_EQ(pieces.SizeOf(1), 40);
  EXPECT_EQ(pieces.SizeOf(2), 0);
  EXPECT_EQ(pieces.SizeOf(std::vector<int64_t>{0, 1}), kPieceBytes + 40);
  std::vector<std::pair<char*, int64_t>> runs;
  for (const int64_t piece : {0, 1}) {
    pieces.Visit(piece, [&runs](char* data, int64_t bytes) {
      runs.emplace_back(data, bytes);
    });
  }
  char* const first = reinterpret_cast<char*>(small.data());
  char* const second = reinterpret_cast<char*>(large.data());
  EXPECT_THAT(runs, ElementsAre(Pair(first, 24), Pair(second, kPieceBytes - 24),
                                Pair(second + kPieceBytes - 24, 40)));
}

}  // namespace
}  // namespace coxswain::catch_up
