// Checkpoint folders that must be readable for ever, see
// docs/storage-format.md.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "server/checkpoint/catalogue.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/checkpoint/manifest.h"
#include "server/storage/file_system.h"

namespace coxswain::server::checkpoint_golden_test {
namespace {

constexpr char kFolder[] = "tests/checkpoint/golden";
constexpr char kFull[] = "step-000000000120-91f2b04ce7a6d358";
// From before generations were recorded.
constexpr char kOld[] = "step-000000000099-0000000000000001";

std::string PathOf(const std::string& id, const std::string& file) {
  return absl::StrCat(kFolder, "/", id, "/", file);
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string ShardOfFull() {
  std::string data;
  for (int i = 0; i < 1000; ++i) data.push_back(static_cast<char>(i * 7 + 3));
  return data;
}

CheckpointRecord FullRecord() {
  CheckpointRecord record;
  record.id = kFull;
  record.job = "golden";
  record.step = 120;
  record.generation = Generation(7);
  record.shard_count = 2;
  record.metadata = {{"hook", "powersgd(rank=2,start_step=20)"},
                     {"world_size", "2"},
                     {"plan_version", "3"},
                     {"position/main", "240"},
                     {"note", "sch\xc3\xb6n \"quoted\"\n"}};
  record.created = absl::FromUnixMillis(1763800000123);
  record.shards[0] = {0, "shard-00000.17", 1000, 0xdd2edff7};
  record.shards[1] = {1, "shard-00001.18", 0, 0};
  return record;
}

TEST(CheckpointGoldenTest, AManifestIsReadAsItWasMeant) {
  ASSERT_OK_AND_ASSIGN(const auto read,
                       DecodeManifest(Bytes(PathOf(kFull, "MANIFEST"))));
  const CheckpointRecord meant = FullRecord();
  EXPECT_OK(CheckManifestOf(read, "golden", kFull));
  EXPECT_EQ(read.step, meant.step);
  EXPECT_EQ(read.generation, meant.generation);
  EXPECT_EQ(read.shard_count, meant.shard_count);
  EXPECT_EQ(read.metadata, meant.metadata);
  EXPECT_EQ(read.created, meant.created);
  ASSERT_EQ(read.shards.size(), 2);
  for (const auto& [index, shard] : meant.shards) {
    EXPECT_EQ(read.shards.at(index).file, shard.file);
    EXPECT_EQ(read.shards.at(index).bytes, shard.bytes);
    EXPECT_EQ(read.shards.at(index).crc32c, shard.crc32c);
  }
}

TEST(CheckpointGoldenTest, TheSameManifestIsWritten) {
  ASSERT_OK_AND_ASSIGN(const std::string written, EncodeManifest(FullRecord()));
  EXPECT_EQ(written, Bytes(PathOf(kFull, "MANIFEST")));
}

TEST(CheckpointGoldenTest, AnOlderManifestIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto read,
                       DecodeManifest(Bytes(PathOf(kOld, "MANIFEST"))));
  EXPECT_EQ(read.step, 99);
  EXPECT_EQ(read.generation, Generation(0));
  EXPECT_TRUE(read.metadata.empty());
}

absl::StatusOr<std::string> Read(CheckpointStore& store, const std::string& id,
                                 int shard) {
  COXSWAIN_ASSIGN_OR_RETURN(const auto download,
                            store.StartDownload("golden", id, shard));
  std::string data;
  while (true) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto chunk, download->Next());
    if (!chunk.has_value()) return data;
    data.append(chunk->data.data(), chunk->data.size());
  }
}

TEST(CheckpointGoldenTest, ACoordinatorServesTheFolders) {
  namespace fs = std::filesystem;
  const fs::path state = fs::path(testing::TempDir()) / "checkpoint_golden";
  fs::create_directories(state);
  for (const char* id : {kFull, kOld}) {
    fs::create_directories(state / "golden" / id);
    for (const auto& file : fs::directory_iterator(fs::path(kFolder) / id)) {
      std::ofstream copy(state / "golden" / id / file.path().filename(),
                         std::ios::binary);
      copy << Bytes(file.path().string());
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto store,
                       CheckpointStore::Open(PosixFileSystem(), state.string(),
                                             CheckpointLimits(), Clock::Real(),
                                             RandomSource::System()));
  ASSERT_EQ(store->List("golden").size(), 2);
  EXPECT_EQ(store->List("golden").front().id, kFull);
  EXPECT_EQ(Read(*store, kFull, 0).value_or("unreadable"), ShardOfFull());
  EXPECT_EQ(Read(*store, kFull, 1).value_or("unreadable"), "");
  EXPECT_EQ(Read(*store, kOld, 0).value_or("unreadable"), "opaque bytes");
  EXPECT_OK(store->CheckManifest("golden", kFull));
}

}  // namespace
}  // namespace coxswain::server::checkpoint_golden_test
