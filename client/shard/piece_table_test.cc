#include "client/shard/piece_table.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/crc32c.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A box of a matrix, and a scalar.
std::vector<TensorPiece> TwoPieces() {
  TensorPiece matrix =
      TensorPiece::Whole("w", "m", ElementType::kFloat32, {4, 6});
  matrix.box = {{1, 0}, {3, 6}};
  matrix.begin = 2;
  matrix.end = 12;
  matrix.step = 5;
  return {matrix, TensorPiece::Whole("s", "value", ElementType::kFloat64, {})};
}

std::string TableOf(const std::vector<TensorPiece>& pieces) {
  const auto bytes = SerializePieceTable(pieces);
  EXPECT_OK(bytes);
  return *bytes;
}

// Puts the checksum right again.
std::string Sealed(std::string bytes) {
  bytes.resize(bytes.size() - 4);
  const uint32_t checksum = Crc32c(bytes);
  bytes.append(reinterpret_cast<const char*>(&checksum), 4);
  return bytes;
}

TEST(PieceTableTest, ComesBackAsItWas) {
  const std::string bytes = TableOf(TwoPieces());
  ASSERT_OK_AND_ASSIGN(const int64_t length,
                       PieceTableBytes(bytes.substr(0, kPieceHeadBytes)));
  EXPECT_EQ(length, static_cast<int64_t>(bytes.size()));
  ASSERT_OK_AND_ASSIGN(const PieceTable table,
                       ParsePieceTable(bytes + "elements"));
  ASSERT_EQ(table.pieces.size(), 2u);
  EXPECT_EQ(Describe(table.pieces[0]),
            "m of w, elements [2, 12) of the box [1:3, 0:6]");
  EXPECT_EQ(table.pieces[0].step, 5);
  EXPECT_THAT(table.pieces[0].shape, ElementsAre(4, 6));
  EXPECT_EQ(table.pieces[1].dtype, ElementType::kFloat64);
  EXPECT_EQ(TableOf(table.pieces), bytes);
}

TEST(PieceTableTest, ElementsBeginAtCacheLinesBehindIt) {
  const std::string bytes = TableOf(TwoPieces());
  ASSERT_OK_AND_ASSIGN(const PieceTable table, ParsePieceTable(bytes));
  const int64_t first = (static_cast<int64_t>(bytes.size()) + 63) / 64 * 64;
  EXPECT_THAT(table.offsets, ElementsAre(first, first + 64));
  EXPECT_EQ(table.bytes, first + 64 + 8);
  ASSERT_OK_AND_ASSIGN(const PieceTable none, ParsePieceTable(TableOf({})));
  EXPECT_EQ(none.bytes, static_cast<int64_t>(TableOf({}).size()));
}

// What docs/piece-format.md says, byte by byte.
TEST(PieceTableTest, HasTheBytesOfItsFormat) {
  TensorPiece piece = TensorPiece::Whole("w", "m", ElementType::kFloat32, {4});
  piece.box = {{1}, {3}};
  piece.end = 1;
  piece.step = 5;
  const std::string bytes = TableOf({piece});
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(0, bytes.size() - 4)),
            "43585054"  // CXPT
            "01000000"
            "6100000000000000"
            "01000000"                // pieces
            "0100000077"              // w
            "010000006d"              // m
            "07000000666c6f61743332"  // float32
            "01000000"                // dimensions
            "0400000000000000"
            "0100000000000000"
            "0300000000000000"
            "0000000000000000"  // range
            "0100000000000000"
            "0500000000000000");  // step
}

TEST(PieceTableTest, ALaterFormatIsRefusedAndNamed) {
  std::string bytes = TableOf(TwoPieces());
  bytes[4] = 2;
  EXPECT_THAT(
      ParsePieceTable(Sealed(bytes)),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 2")));
}

TEST(PieceTableTest, DamageIsDataLoss) {
  const std::string whole = TableOf(TwoPieces());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(ParsePieceTable(whole.substr(0, length)),
                StatusIs(absl::StatusCode::kDataLoss, testing::_))
        << length;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 0x10);
    EXPECT_FALSE(ParsePieceTable(other).ok()) << at;
    // No field is trusted because a checksum is right.
    ParsePieceTable(Sealed(other)).status().IgnoreError();
  }
}

TEST(PieceTableTest, AnImpossiblePieceIsDataLoss) {
  std::vector<TensorPiece> pieces = TwoPieces();
  pieces[0].end = 13;  // of a box of 12
  EXPECT_THAT(ParsePieceTable(TableOf(pieces)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("a box of 12")));
}

TEST(PieceTableTest, MoreThanThereCanBeIsRefused) {
  constexpr int64_t kLarge = int64_t{1} << 60;
  const TensorPiece large =
      TensorPiece::Whole("w", "m", ElementType::kFloat32, {kLarge});
  EXPECT_THAT(SerializePieceTable({large, large}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("more bytes than there can be")));
}

}  // namespace
}  // namespace coxswain
