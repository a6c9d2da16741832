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

}  // namespace
}  // namespace coxswain
