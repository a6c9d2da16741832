#include "base/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace coxswain {
namespace {

// The vectors of RFC 3720, appendix B.4, and the common check value.
TEST(Crc32cTest, MatchesPublishedVectors) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32cTest, PiecesGiveTheValueOfTheWhole) {
  EXPECT_EQ(Crc32c("6789", Crc32c("12345")), Crc32c("123456789"));
}

TEST(Crc32cTest, TheWholeIsKnownFromItsPieces) {
  const std::string bytes = "123456789" + std::string(5000, '\xa7') + "end";
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{9}, size_t{4096},
                           bytes.size() - 1, bytes.size()}) {
    const uint32_t first = Crc32c(bytes.substr(0, cut));
    const uint32_t second = Crc32c(bytes.substr(cut));
    EXPECT_EQ(Crc32cConcat(first, second, bytes.size() - cut), Crc32c(bytes))
        << cut;
  }
}

// Zeros, so that a length beyond what a test can hold has a known value: each
// half is the same.
TEST(Crc32cTest, ConcatTakesLongPieces) {
  constexpr uint64_t kHalf = uint64_t{1} << 40;
  const auto zeros = [](int log) {
    uint32_t crc = Crc32c(std::string(1, '\0'));
    for (int i = 0; i < log; ++i)
      crc = Crc32cConcat(crc, crc, uint64_t{1} << i);
    return crc;
  };
  EXPECT_EQ(zeros(12), Crc32c(std::string(4096, '\0')));
  EXPECT_EQ(Crc32cConcat(Crc32cConcat(1, zeros(40), kHalf), zeros(40), kHalf),
            Crc32cConcat(1, zeros(41), 2 * kHalf));
}

}  // namespace
}  // namespace coxswain
