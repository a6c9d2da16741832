#include "server/state/record_bytes.h"

#include <limits>

#include "gtest/gtest.h"

namespace coxswain::server {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

TEST(RecordBytesTest, ReadsBackWhatWasAppended) {
  std::string bytes;
  AppendNumber(0, &bytes);
  AppendString(std::string("a\0b", 3), &bytes);
  AppendNumber(kMax, &bytes);
  AppendString("", &bytes);
  RecordReader reader(bytes);
  EXPECT_EQ(reader.Number(), 0);
  EXPECT_EQ(reader.String(), std::string("a\0b", 3));
  EXPECT_EQ(reader.Number(), kMax);
  EXPECT_FALSE(reader.complete());
  EXPECT_EQ(reader.String(), "");
  EXPECT_TRUE(reader.complete());
}

TEST(RecordBytesTest, NumbersSortAsTheirBytes) {
  std::string small;
  std::string large;
  AppendNumber(255, &small);
  AppendNumber(256, &large);
  EXPECT_LT(small, large);
}

TEST(RecordBytesTest, ACutOrALyingLengthIsNoticed) {
  std::string bytes;
  AppendString("text", &bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    RecordReader reader(cut);
    EXPECT_EQ(reader.String(), "") << size;
    EXPECT_FALSE(reader.complete()) << size;
    EXPECT_EQ(reader.Number(), 0) << size;
  }
  std::string lying;
  AppendNumber(kMax, &lying);
  RecordReader reader(lying);
  EXPECT_EQ(reader.String(), "");
  EXPECT_FALSE(reader.complete());
}

}  // namespace
}  // namespace coxswain::server
