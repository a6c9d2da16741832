#include "server/checkpoint/manifest.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/status_matchers.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

CheckpointRecord Example() {
  CheckpointRecord record;
  record.id = "step-000000000007-00000000000000ab";
  record.job = "job";
  record.step = 7;
  record.shard_count = 2;
  record.metadata = {{"hook", "powersgd(rank=2)"}, {"newline", "a\nb \"q\""}};
  record.created = absl::FromUnixMillis(1234567890123);
  record.generation = Generation(3);
  record.shards[0] = {0, "shard-00000.1", 10, 0xdeadbeef};
  record.shards[1] = {1, "shard-00001.2", int64_t{5} << 32, 0};
  return record;
}

TEST(ManifestTest, DecodesWhatWasEncoded) {
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(Example()));
  ASSERT_OK_AND_ASSIGN(const CheckpointRecord record, DecodeManifest(bytes));
  EXPECT_EQ(record.id, Example().id);
  EXPECT_EQ(record.job, "job");
  EXPECT_EQ(record.step, 7);
  EXPECT_EQ(record.generation, Generation(3));
  EXPECT_EQ(record.shard_count, 2);
  EXPECT_EQ(record.metadata, Example().metadata);
  EXPECT_EQ(record.created, Example().created);
  EXPECT_EQ(record.shards.at(0).crc32c, 0xdeadbeef);
  EXPECT_EQ(record.shards.at(1).file, "shard-00001.2");
  EXPECT_EQ(record.TotalBytes(), (int64_t{5} << 32) + 10);
}

// The format of the bytes on disk is stable: this text must always be readable.
TEST(ManifestTest, ReadsVersionOne) {
  const std::string bytes =
      "coxswain-checkpoint 1 8fe2e16a\n"
      R"({"created_unix_ms":1,"id":"i","job":"j","metadata":{"k":"v"},)"
      R"("shard_count":1,"shards":[{"bytes":3,"crc32c":4,"file":"f",)"
      R"("shard":0}],"step":2})"
      "\n";
  ASSERT_OK_AND_ASSIGN(const CheckpointRecord record, DecodeManifest(bytes));
  EXPECT_EQ(record.step, 2);
  EXPECT_EQ(record.generation, Generation(0));
  EXPECT_EQ(record.metadata.at("k"), "v");
  EXPECT_EQ(record.shards.at(0).bytes, 3);
}

// With a checksum that matches, as in a file that was made by hand.
TEST(ManifestTest, NumbersThatCannotBeAreRefused) {
  const std::string shard = R"({"bytes":3,"crc32c":4,"file":"f","shard":0})";
  const auto decode = [](const std::string& step, const std::string& shards) {
    const std::string body = absl::StrCat(
        R"({"created_unix_ms":1,"id":"i","job":"j","metadata":{},)",
        R"("shard_count":1,"shards":[)", shards, R"(],"step":)", step, "}");
    return DecodeManifest(
        absl::StrFormat("coxswain-checkpoint 1 %08x\n%s", Crc32c(body), body));
  };
  EXPECT_OK(decode("2", shard));
  for (const char* step : {"-1", "1e300", "2.5", "true", "\"2\"",
                           "9223372036854775808", "18446744073709551615"}) {
    EXPECT_THAT(decode(step, shard),
                StatusIs(absl::StatusCode::kDataLoss, testing::_))
        << step;
  }
  const auto with = [&shard](const std::string& from, const std::string& to) {
    return absl::StrReplaceAll(shard, {{from, to}});
  };
  for (const std::string& bad : {with("\"bytes\":3", "\"bytes\":-3"),
                                 with("\"shard\":0", "\"shard\":-1"),
                                 with("\"crc32c\":4", "\"crc32c\":4294967296"),
                                 with("\"shard\":0", "\"shard\":4294967296"),
                                 absl::StrCat(shard, ",", shard)}) {
    EXPECT_THAT(decode("2", bad),
                StatusIs(absl::StatusCode::kDataLoss, testing::_))
        << bad;
  }
  const std::string most = with("\"bytes\":3", "\"bytes\":9223372036854775807");
  EXPECT_THAT(
      decode("2", absl::StrCat(most, ",",
                               absl::StrReplaceAll(
                                   most, {{"\"shard\":0", "\"shard\":1"}}))),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("no disk")));
}

TEST(ManifestTest, EveryFlippedBitIsNoticed) {
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(Example()));
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      // The checksum's digits may change case and still mean the same.
      const auto decoded = DecodeManifest(flipped);
      if (decoded.ok()) {
        EXPECT_EQ(flipped.substr(flipped.find('\n')),
                  bytes.substr(bytes.find('\n')));
      }
    }
  }
}

TEST(ManifestTest, EveryTruncationIsNoticed) {
  ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(Example()));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeManifest(bytes.substr(0, size)).ok()) << size;
  }
}

TEST(ManifestTest, ALaterVersionIsNamed) {
  EXPECT_THAT(
      DecodeManifest("coxswain-checkpoint 2 00000000 more\n{}"),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("version 2")));
}

TEST(ManifestTest, MetadataThatIsNotUtf8IsRefused) {
  CheckpointRecord record = Example();
  record.metadata["bad"] = "\xff";
  EXPECT_THAT(
      EncodeManifest(record),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("metadata")));
}

}  // namespace
}  // namespace coxswain::server
