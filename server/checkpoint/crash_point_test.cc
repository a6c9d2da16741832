// Crashes at every single mutation of the disk, with three outcomes for
// unsynced data, and checks what is left.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "server/checkpoint/checkpoint_store.h"
#include "server/storage/fault_file_system.h"
#include "server/storage/memory_file_system.h"

namespace coxswain::server {
namespace {

constexpr int kShards = 2;

Fence TestFence() {
  Fence fence;
  fence.job = "job";
  fence.generation = Generation(1);
  return fence;
}

std::string ShardData(int64_t step, int shard) {
  return absl::StrCat("step ", step, " shard ", shard, ": ",
                      std::string(100, static_cast<char>('a' + shard)));
}

// One life of the coordinator on a disk that may fail.
class Life {
 public:
  explicit Life(FileSystem* files)
      : store_(CheckpointStore::Open(files, "/checkpoints", CheckpointLimits(),
                                     &clock_, RandomSource::System())) {}

  const absl::Status& status() const { return store_.status(); }
  CheckpointStore* operator->() { return store_->get(); }

  absl::Status Save(int64_t step, int64_t generation = 1,
                    const RetentionRules& rules = {}) {
    Fence fence = TestFence();
    fence.generation = Generation(generation);
    COXSWAIN_RETURN_IF_ERROR(store_.status());
    CheckpointStore& store = **store_;
    COXSWAIN_ASSIGN_OR_RETURN(const std::string id,
                              store.Begin(fence, step, kShards, {}));
    for (int shard = 0; shard < kShards; ++shard) {
      const std::string data = ShardData(step, shard);
      COXSWAIN_ASSIGN_OR_RETURN(
          const auto upload,
          store.StartUpload(fence, id, shard, static_cast<int64_t>(data.size()),
                            Crc32c(data)));
      const std::string first = data.substr(0, 50);
      const std::string rest = data.substr(50);
      COXSWAIN_RETURN_IF_ERROR(upload->Append(0, first, Crc32c(first)));
      COXSWAIN_RETURN_IF_ERROR(upload->Append(50, rest, Crc32c(rest)));
      COXSWAIN_RETURN_IF_ERROR(upload->Finish());
    }
    return store.Commit(fence, id, rules).status();
  }

  // Returns whether a complete checkpoint of this step is listed; if so, it
  // must be whole.
  bool HasWhole(int64_t step) {
    for (const CheckpointRecord& record : (*store_)->List("job")) {
      if (record.step != step) continue;
      for (int shard = 0; shard < kShards; ++shard) {
        EXPECT_EQ(Download(record.id, shard).value_or("unreadable"),
                  ShardData(step, shard));
      }
      return true;
    }
    return false;
  }

 private:
  absl::StatusOr<std::string> Download(const std::string& id, int shard) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto download,
                              (*store_)->StartDownload("job", id, shard));
    std::string data;
    while (true) {
      COXSWAIN_ASSIGN_OR_RETURN(const auto chunk, download->Next());
      if (!chunk.has_value()) return data;
      data.append(chunk->data.data(), chunk->data.size());
    }
  }

  FakeClock clock_;
  absl::StatusOr<std::unique_ptr<CheckpointStore>> store_;
};

class CrashPointTest : public testing::TestWithParam<UnsyncedData> {};

TEST_P(CrashPointTest, ACommitIsWholeOrAbsentAndTheFormerOneStays) {
  int64_t points = 1;
  bool seen_absent = false;
  bool seen_whole = false;
  for (int64_t point = 0; point <= points; ++point) {
    SCOPED_TRACE(absl::StrCat("crash after mutation ", point));
    MemoryFileSystem memory;
    FaultFileSystem files(&memory);
    absl::Status saved;
    {
      Life life(&files);
      ASSERT_OK(life.status());
      ASSERT_OK(life.Save(1));
      const int64_t before = files.mutations();
      files.CrashAfter(point == points ? 1000000 : point);
      saved = life.Save(2);
      if (point == 0) {
        // Count the points on a disk that does not fail.
        MemoryFileSystem calm_memory;
        FaultFileSystem calm(&calm_memory);
        Life calm_life(&calm);
        ASSERT_OK(calm_life.Save(1));
        const int64_t start = calm.mutations();
        ASSERT_OK(calm_life.Save(2));
        points = calm.mutations() - start;
        EXPECT_GT(points, 10);
        EXPECT_EQ(files.mutations(), before);
      }
    }
    files.Restart(GetParam());
    Life next(&files);
    ASSERT_OK(next.status());
    EXPECT_TRUE(next.HasWhole(1));
    const bool has_new = next.HasWhole(2);
    EXPECT_TRUE(has_new || !saved.ok()) << "acknowledged, then lost";
    (has_new ? seen_whole : seen_absent) = true;
    ASSERT_OK_AND_ASSIGN(const auto names, files.List("/checkpoints/job"));
    EXPECT_EQ(names.size(), has_new ? 2 : 1) << "leftovers";
    EXPECT_THAT(*files.List("/checkpoints"), testing::ElementsAre("job"));
    // What was lost can be saved again.
    if (!has_new) {
      EXPECT_OK(next.Save(2));
      EXPECT_TRUE(next.HasWhole(2));
    }
  }
  EXPECT_TRUE(seen_absent);
  EXPECT_TRUE(seen_whole);
}

TEST_P(CrashPointTest,
       AStepSavedAgainByALaterGenerationIsNeverWithoutAWholeOne) {
  for (int64_t point = 0; point <= 40; ++point) {
    SCOPED_TRACE(absl::StrCat("crash after mutation ", point));
    MemoryFileSystem memory;
    FaultFileSystem files(&memory);
    absl::Status saved;
    {
      Life life(&files);
      ASSERT_OK(life.Save(1));
      files.CrashAfter(point);
      saved = life.Save(1, 2);
    }
    files.Restart(GetParam());
    Life next(&files);
    ASSERT_OK(next.status());
    EXPECT_TRUE(next.HasWhole(1));
    if (!saved.ok()) continue;
    bool has_new = false;
    for (const CheckpointRecord& record : next->List("job")) {
      has_new = has_new || record.generation == Generation(2);
    }
    EXPECT_TRUE(has_new) << "acknowledged, then lost";
  }
}

TEST_P(CrashPointTest, ADeletedCheckpointIsWholeOrAbsent) {
  for (int64_t point = 0; point <= 8; ++point) {
    SCOPED_TRACE(absl::StrCat("crash after mutation ", point));
    MemoryFileSystem memory;
    FaultFileSystem files(&memory);
    absl::Status deleted;
    {
      Life life(&files);
      ASSERT_OK(life.Save(1));
      ASSERT_OK(life.Save(2));
      const std::string id = life->List("job").front().id;
      files.CrashAfter(point);
      deleted = life->Delete("job", id);
    }
    files.Restart(GetParam());
    Life next(&files);
    ASSERT_OK(next.status());
    EXPECT_TRUE(next.HasWhole(1));
    const bool has_deleted = next.HasWhole(2);
    EXPECT_FALSE(has_deleted && deleted.ok()) << "acknowledged, then back";
    EXPECT_EQ(files.List("/checkpoints/job")->size(), has_deleted ? 2 : 1);
    EXPECT_THAT(*files.List("/checkpoints"), testing::ElementsAre("job"));
  }
}

TEST_P(CrashPointTest, RetentionNeverTakesTheNewestAcknowledgedOne) {
  RetentionRules rules;
  rules.keep_last = 1;
  bool seen_old = false;
  bool seen_done = false;
  for (int64_t point = 0; point <= 60; ++point) {
    SCOPED_TRACE(absl::StrCat("crash after mutation ", point));
    MemoryFileSystem memory;
    FaultFileSystem files(&memory);
    absl::Status saved;
    {
      Life life(&files);
      ASSERT_OK(life.Save(1));
      ASSERT_OK(life.Save(2));
      ASSERT_OK(life.Save(3));
      files.CrashAfter(point);
      saved = life.Save(4, 1, rules);
    }
    files.Restart(GetParam());
    Life next(&files);
    ASSERT_OK(next.status());
    const bool has_new = next.HasWhole(4);
    EXPECT_TRUE(has_new || !saved.ok()) << "acknowledged, then lost";
    EXPECT_TRUE(has_new || next.HasWhole(3)) << "nothing newer is whole";
    // Whole or absent, whichever of the old ones; none before the new one is.
    const int olds = (next.HasWhole(1) ? 1 : 0) + (next.HasWhole(2) ? 1 : 0) +
                     (next.HasWhole(3) ? 1 : 0);
    EXPECT_TRUE(has_new || olds == 3) << "deleted too early";
    seen_old = seen_old || olds == 3;
    seen_done = seen_done || (has_new && olds == 0);
    ASSERT_OK_AND_ASSIGN(const auto names, files.List("/checkpoints/job"));
    EXPECT_EQ(names.size(), olds + (has_new ? 1 : 0)) << "leftovers";
    // The next commit deletes what this one could not.
    ASSERT_OK(next.Save(5, 2, rules));
    EXPECT_EQ(next->List("job").front().step, 5);
  }
  EXPECT_TRUE(seen_old);
  EXPECT_TRUE(seen_done);
}

INSTANTIATE_TEST_SUITE_P(AllWays, CrashPointTest,
                         testing::Values(UnsyncedData::kLost,
                                         UnsyncedData::kKept,
                                         UnsyncedData::kTorn));

}  // namespace
}  // namespace coxswain::server
