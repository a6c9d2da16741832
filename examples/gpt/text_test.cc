#include "examples/gpt/text.h"

#include <zlib.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain::examples::gpt {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileWith(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST(TextTest, ReadsThePackagedText) {
  ASSERT_OK_AND_ASSIGN(const Text text, Text::Read(kPackagedText, 64));
  EXPECT_GT(text.size(), 1000000);
  EXPECT_GT(text.held_out_pieces(), 1000);
}

TEST(TextTest, AMissingFileNamesThePackage) {
  EXPECT_THAT(Text::Read("/nonexistent/text", 64),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("jargon-text")));
}

TEST(TextTest, TextsOfOneSizeAreToldApart) {
  std::string bytes(1000, 'a');
  ASSERT_OK_AND_ASSIGN(const Text one, Text::Read(FileWith("one", bytes), 10));
  bytes[500] = 'b';
  ASSERT_OK_AND_ASSIGN(const Text other,
                       Text::Read(FileWith("other", bytes), 10));
  EXPECT_EQ(one.size(), other.size());
  EXPECT_NE(one.checksum(), other.checksum());
}

TEST(TextTest, PiecesAreOfTheirPartsAndTheSameForTheSameNumber) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) bytes += static_cast<char>(i % 251);
  ASSERT_OK_AND_ASSIGN(const Text text,
                       Text::Read(FileWith("plain", bytes), 10));
  std::set<int64_t> begins;
  for (int64_t number = 0; number < 2000; ++number) {
    const int64_t begin = text.TrainingPiece(/*seed=*/1, number);
    EXPECT_EQ(begin, text.TrainingPiece(1, number));
    EXPECT_GE(begin, 0);
    EXPECT_LE(begin + 10, 900 - 1);
    begins.insert(begin);
  }
  EXPECT_GT(begins.size(), 500u);
  EXPECT_NE(text.TrainingPiece(1, 0), text.TrainingPiece(2, 0));
  EXPECT_EQ(text.held_out_pieces(), 9);
  EXPECT_EQ(text.HeldOutPiece(0), 900);
  EXPECT_EQ(text.HeldOutPiece(8), 980);
  EXPECT_EQ(text.HeldOutPiece(9), 900);

  std::vector<int64_t> tokens(10), targets(10);
  text.Copy(248, tokens.data(), targets.data());
  EXPECT_THAT(tokens, ElementsAre(248, 249, 250, 0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(targets, ElementsAre(249, 250, 0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(TextTest, TooShortATextIsRefused) {
  EXPECT_THAT(Text::Read(FileWith("short", std::string(100, 'x')), 64),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has 100 bytes, too few for pieces of 64")));
}

TEST(TextTest, ADamagedFileIsRefused) {
  const std::string path = ::testing::TempDir() + "/packed.gz";
  const gzFile packed = gzopen(path.c_str(), "wb");
  std::string bytes;
  for (int i = 0; i < 100000; ++i) bytes += static_cast<char>(i * i % 251);
  ASSERT_EQ(gzwrite(packed, bytes.data(), 100000), 100000);
  ASSERT_EQ(gzclose(packed), Z_OK);
  ASSERT_OK_AND_ASSIGN(const Text text, Text::Read(path, 64));
  EXPECT_EQ(text.size(), 100000);

  std::ifstream file(path, std::ios::binary);
  std::string whole((std::istreambuf_iterator<char>(file)),
                    std::istreambuf_iterator<char>());
  EXPECT_THAT(
      Text::Read(FileWith("cut.gz", whole.substr(0, whole.size() / 2)), 64),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut.gz cannot be")));
  whole[whole.size() / 2] ^= 0x40;
  EXPECT_THAT(Text::Read(FileWith("flipped.gz", whole), 64),
              StatusIs(absl::StatusCode::kDataLoss, _));
}

}  // namespace
}  // namespace coxswain::examples::gpt
