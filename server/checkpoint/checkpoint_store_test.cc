#include "server/checkpoint/checkpoint_store.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/fake_clock.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "server/storage/fault_file_system.h"
#include "server/storage/memory_file_system.h"

namespace coxswain::server {
namespace {

using testing::HasSubstr;

constexpr char kFolder[] = "/checkpoints";

class CheckpointStoreTest : public testing::Test {
 protected:
  CheckpointStoreTest() : files_(&memory_) {
    limits_.max_chunk_bytes = 16;
    limits_.max_shard_bytes = 1000;
    limits_.max_shards = 8;
    limits_.max_metadata_bytes = 100;
    limits_.max_open_uploads = 3;
    limits_.max_open_checkpoints = 2;
    limits_.max_checkpoints_per_job = 3;
    Reopen();
  }

  void Reopen() {
    store_.reset();
    ASSERT_OK_AND_ASSIGN(
        store_, CheckpointStore::Open(&files_, kFolder, limits_, &clock_,
                                      RandomSource::System()));
  }
  static Fence FenceOf(const std::string& job = "job", int64_t generation = 1) {
    Fence fence;
    fence.job = job;
    fence.generation = Generation(generation);
    return fence;
  }
  absl::StatusOr<std::unique_ptr<ShardUpload>> Start(const std::string& id,
                                                     int shard,
                                                     const std::string& data,
                                                     int64_t generation = 1) {
    return store_->StartUpload(FenceOf("job", generation), id, shard,
                               static_cast<int64_t>(data.size()), Crc32c(data));
  }
  absl::Status Upload(const std::string& id, int shard, const std::string& data,
                      int64_t generation = 1) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto upload,
                              Start(id, shard, data, generation));
    for (size_t offset = 0; offset < data.size(); offset += 16) {
      const std::string chunk = data.substr(offset, 16);
      COXSWAIN_RETURN_IF_ERROR(
          upload->Append(static_cast<int64_t>(offset), chunk, Crc32c(chunk)));
    }
    return upload->Finish();
  }
  absl::StatusOr<std::string> Download(const std::string& id, int shard) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto download,
                              store_->StartDownload("job", id, shard));
    std::string data;
    while (true) {
      COXSWAIN_ASSIGN_OR_RETURN(const auto chunk, download->Next());
      if (!chunk.has_value()) break;
      EXPECT_EQ(chunk->offset, static_cast<int64_t>(data.size()));
      EXPECT_EQ(chunk->crc32c, Crc32c(chunk->data));
      data.append(chunk->data.data(), chunk->data.size());
    }
    EXPECT_EQ(download->crc32c(), Crc32c(data));
    return data;
  }
  absl::StatusOr<std::string> Save(int64_t step, const std::string& data) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string id,
                              store_->Begin(FenceOf(), step, 1, {}));
    COXSWAIN_RETURN_IF_ERROR(Upload(id, 0, data));
    COXSWAIN_RETURN_IF_ERROR(store_->Commit(FenceOf(), id).status());
    return id;
  }
  // Returns the folder of what is not complete; "" before the first change.
  std::string TermFolder() {
    const std::vector<std::string> names = *files_.List(kFolder);
    for (const std::string& name : names) {
      if (name.front() == '@') return absl::StrCat(kFolder, "/", name);
    }
    return "";
  }
  // Of complete checkpoints of the job, and of all others.
  size_t FoldersOfJob() {
    const std::string others = TermFolder();
    return files_.List("/checkpoints/job")->size() +
           (others.empty() ? 0 : files_.List(others)->size());
  }
  std::vector<std::string> FilesOf(const std::string& id) {
    return *files_.List(absl::StrCat(kFolder, "/job/", id));
  }
  // Of the complete checkpoint.
  std::vector<std::string> FilesInManifest(const std::string& id) {
    std::vector<std::string> files = {std::string(kManifestFile)};
    const CheckpointRecord record = *store_->Find("job", id);
    for (const auto& [index, shard] : record.shards) {
      files.push_back(shard.file);
    }
    return files;
  }
  absl::Status Write(const std::string& path, const std::string& data) {
    COXSWAIN_ASSIGN_OR_RETURN(const auto file, files_.Create(path));
    COXSWAIN_RETURN_IF_ERROR(file->Append(data));
    return file->Sync();
  }

  MemoryFileSystem memory_;
  FaultFileSystem files_;
  FakeClock clock_;
  CheckpointLimits limits_;
  std::unique_ptr<CheckpointStore> store_;
};

TEST_F(CheckpointStoreTest, WhatWasCommittedIsReadBackAlsoAfterARestart) {
  const std::string data(100, 'x');
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 7, 2, {{"hook", "int8"}}));
  ASSERT_OK(Upload(id, 1, data));
  ASSERT_OK(Upload(id, 0, ""));
  EXPECT_TRUE(store_->List("job").empty());
  ASSERT_OK_AND_ASSIGN(const auto committed, store_->Commit(FenceOf(), id));
  EXPECT_EQ(committed.TotalBytes(), 100);
  for (int life = 0; life < 2; ++life) {
    ASSERT_EQ(store_->List("job").size(), 1);
    const CheckpointRecord record = store_->List("job").front();
    EXPECT_EQ(record.id, id);
    EXPECT_EQ(record.step, 7);
    EXPECT_EQ(record.metadata.at("hook"), "int8");
    EXPECT_EQ(record.created, clock_.WallTime());
    EXPECT_EQ(Download(id, 0).value_or("unreadable"), "");
    EXPECT_EQ(Download(id, 1).value_or("unreadable"), data);
    EXPECT_OK(store_->Commit(FenceOf(), id));
    Reopen();
  }
}

// A worker can cause refused uploads as often as it likes, of any shard of any
// checkpoint.
TEST_F(CheckpointStoreTest, RefusedUploadsAreLoggedOnceAMinuteForAJob) {
  const auto refused = [this](const std::string& job, int times) {
    testing::internal::CaptureStderr();
    const std::string id = store_->Begin(FenceOf(job), 7, 8, {}).value();
    for (int i = 0; i < times; ++i) {
      const auto upload =
          store_->StartUpload(FenceOf(job), id, i % 8, 4, Crc32c("data"));
      EXPECT_THAT((*upload)->Append(0, "data", Crc32c("else")),
                  StatusIs(absl::StatusCode::kDataLoss, testing::_));
    }
    const std::vector<std::string> lines = absl::StrSplit(
        testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
    return lines;
  };
  EXPECT_THAT(refused("a", 100),
              testing::ElementsAre(HasSubstr(" W upload_refused job=a ")));
  EXPECT_THAT(refused("b", 1),
              testing::ElementsAre(HasSubstr(" W upload_refused job=b ")));
  clock_.Advance(LogRate::kPeriod);
  EXPECT_THAT(refused("a", 1),
              testing::ElementsAre(HasSubstr("of=upload_refused lines=99"),
                                   HasSubstr(" W upload_refused job=a ")));
}

TEST_F(CheckpointStoreTest, AnOverviewHasTheNewestAndWhatIsOpen) {
  ASSERT_OK(Save(1, "one"));
  clock_.Advance(absl::Minutes(1));
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 2, 1, {}));
  ASSERT_OK(Upload(id, 0, "second"));
  CheckpointOverview overview = store_->Overview("job", 10);
  EXPECT_EQ(overview.complete, 1u);
  ASSERT_EQ(overview.newest.size(), 2u);
  EXPECT_EQ(overview.newest[0].step, 2);
  EXPECT_FALSE(overview.newest[0].complete);
  EXPECT_EQ(overview.newest[1].step, 1);
  EXPECT_EQ(overview.newest[1].bytes, 3);
  EXPECT_TRUE(overview.newest[1].complete);
  clock_.Advance(absl::Seconds(7));
  ASSERT_OK(store_->Commit(FenceOf(), id));
  overview = store_->Overview("job", 1);
  EXPECT_EQ(overview.complete, 2u);
  ASSERT_EQ(overview.newest.size(), 1u);
  EXPECT_EQ(overview.newest[0].id, id);
  EXPECT_EQ(overview.newest[0].created, clock_.WallTime());
  EXPECT_EQ(store_->Durations().count(), 2u);
  EXPECT_DOUBLE_EQ(store_->Durations().sum(), 7);
  EXPECT_TRUE(store_->Overview("another", 10).newest.empty());
}

TEST_F(CheckpointStoreTest, RanksThatBeginAtOnceJoinTheSameCheckpoint) {
  std::vector<std::string> ids(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ids.size(); ++i) {
    threads.emplace_back([this, &ids, i] {
      ids[i] = store_->Begin(FenceOf(), 5, 8, {}).value_or("error");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(ids, testing::Each(ids[0]));
  EXPECT_NE(ids[0], "error");
  EXPECT_EQ(FoldersOfJob(), 1);
}

TEST_F(CheckpointStoreTest, RanksMustBeginAlike) {
  ASSERT_OK(store_->Begin(FenceOf(), 5, 2, {{"k", "v"}}));
  const auto differs = [](const char* text) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(text));
  };
  EXPECT_THAT(store_->Begin(FenceOf(), 5, 3, {{"k", "v"}}),
              differs("has 2 shards, not 3"));
  EXPECT_THAT(store_->Begin(FenceOf(), 5, 2, {}), differs("metadata"));
}

TEST_F(CheckpointStoreTest, AStepIsCompletedOnce) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(5, "data"));
  EXPECT_THAT(store_->Begin(FenceOf(), 5, 1, {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(id)));
}

TEST_F(CheckpointStoreTest, CommitNamesMissingShards) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 5, 4, {}));
  ASSERT_OK(Upload(id, 2, "data"));
  EXPECT_THAT(store_->Commit(FenceOf(), id),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("missing: 0, 1, 3")));
  EXPECT_THAT(store_->Commit(FenceOf(), "other"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("other")));
}

TEST_F(CheckpointStoreTest, ADamagedUploadIsDiscardedAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 5, 1, {}));
  ASSERT_OK(Upload(id, 0, "good"));
  const std::string uploads = absl::StrCat(TermFolder(), "/", id, ".uploads");
  const std::string half(16, 'h');
  const auto loss = [](const char* text) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(text));
  };
  const auto start = [&] { return *Start(id, 0, half + half); };
  {
    const auto upload = start();
    EXPECT_THAT(upload->Append(0, half, Crc32c(half) + 1), loss("CRC-32C"));
    EXPECT_THAT(upload->Append(0, half, Crc32c(half)), loss("CRC-32C"));
    EXPECT_THAT(upload->Finish(), loss("CRC-32C"));
  }
  EXPECT_THAT(start()->Append(16, half, Crc32c(half)), loss("offset 16"));
  {
    const auto upload = start();
    ASSERT_OK(upload->Append(0, half, Crc32c(half)));
    EXPECT_THAT(upload->Append(0, half, Crc32c(half)), loss("offset 0"));
  }
  {
    const auto upload = start();
    ASSERT_OK(upload->Append(0, half, Crc32c(half)));
    EXPECT_THAT(upload->Finish(), loss("only 16 of the announced 32"));
  }
  {
    const auto upload = start();
    ASSERT_OK(upload->Append(0, half, Crc32c(half)));
    ASSERT_OK(upload->Append(16, half, Crc32c(half)));
    EXPECT_THAT(upload->Append(32, "x", Crc32c("x")), loss("more bytes"));
  }
  {
    ASSERT_OK_AND_ASSIGN(const auto upload,
                         store_->StartUpload(FenceOf(), id, 0, 16, 1));
    ASSERT_OK(upload->Append(0, half, Crc32c(half)));
    EXPECT_THAT(upload->Finish(), loss("00000001 was announced"));
  }
  { const auto abandoned = start(); }
  EXPECT_EQ(files_.List(uploads)->size(), 1);
  ASSERT_OK(store_->Commit(FenceOf(), id));
  EXPECT_EQ(Download(id, 0).value_or("unreadable"), "good");
}

TEST_F(CheckpointStoreTest, TheLastCompleteUploadOfAShardCounts) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 5, 1, {}));
  ASSERT_OK(Upload(id, 0, "first"));
  ASSERT_OK(Upload(id, 0, "second"));
  ASSERT_OK_AND_ASSIGN(const auto unfinished, Start(id, 0, "third"));
  ASSERT_OK(store_->Commit(FenceOf(), id));
  ASSERT_OK(unfinished->Append(0, "third", Crc32c("third")));
  EXPECT_THAT(unfinished->Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(id)));
  EXPECT_EQ(Download(id, 0).value_or("unreadable"), "second");
}

TEST_F(CheckpointStoreTest, UploadsDuringACommitLeaveNothingInItsFolder) {
  bool done = false;
  for (int64_t point = 0; !done; ++point) {
    SCOPED_TRACE(absl::StrCat("before mutation ", point));
    Reopen();
    ASSERT_OK_AND_ASSIGN(const std::string id,
                         store_->Begin(FenceOf(), point, 1, {}));
    ASSERT_OK(Upload(id, 0, "data"));
    ASSERT_OK_AND_ASSIGN(const auto abandoned, Start(id, 0, "other"));
    std::unique_ptr<ShardUpload> late;
    bool ran = false;
    files_.Before(point, [&] {
      ran = true;
      EXPECT_FALSE(Upload(id, 0, "third").ok());
      late = Start(id, 0, "fourth").value_or(nullptr);
    });
    ASSERT_OK(store_->Commit(FenceOf(), id));
    done = !ran;
    files_.Restart(UnsyncedData::kKept);
    EXPECT_THAT(abandoned->Append(0, "other", Crc32c("other")), IsOk());
    EXPECT_FALSE(abandoned->Finish().ok());
    late.reset();
    EXPECT_EQ(FilesOf(id), FilesInManifest(id));
    EXPECT_EQ(Download(id, 0).value_or("unreadable"), "data");
    EXPECT_THAT(*files_.List(TermFolder()), testing::IsEmpty());
    ASSERT_OK(store_->Delete("job", id));
  }
}

TEST_F(CheckpointStoreTest, ACommitDuringAnUploadHasNothingElseInItsFolder) {
  bool done = false;
  for (int64_t point = 0; !done; ++point) {
    SCOPED_TRACE(absl::StrCat("before mutation ", point));
    Reopen();
    ASSERT_OK_AND_ASSIGN(const std::string id,
                         store_->Begin(FenceOf(), point, 2, {}));
    ASSERT_OK(Upload(id, 0, "first"));
    ASSERT_OK(Upload(id, 1, "of another rank"));
    bool ran = false;
    files_.Before(point, [&] {
      ran = true;
      EXPECT_OK(store_->Commit(FenceOf(), id));
    });
    const bool second = Upload(id, 0, "second").ok();
    done = !ran;
    files_.Restart(UnsyncedData::kKept);
    if (done) {
      EXPECT_OK(store_->Commit(FenceOf(), id));
    }
    EXPECT_EQ(FilesOf(id), FilesInManifest(id));
    EXPECT_EQ(Download(id, 0).value_or("unreadable"),
              second ? "second" : "first");
    EXPECT_THAT(*files_.List(TermFolder()), testing::IsEmpty());
    ASSERT_OK(store_->Delete("job", id));
  }
}

TEST_F(CheckpointStoreTest, AShardUploadedAgainAfterAFailedCommitIsTheOnlyOne) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 5, 1, {}));
  ASSERT_OK(Upload(id, 0, "first"));
  files_.FailNext("MANIFEST", absl::ResourceExhaustedError("disk full"));
  EXPECT_FALSE(store_->Commit(FenceOf(), id).ok());
  ASSERT_OK(Upload(id, 0, "second"));
  ASSERT_OK(store_->Commit(FenceOf(), id));
  EXPECT_EQ(FilesOf(id), FilesInManifest(id));
  EXPECT_EQ(Download(id, 0).value_or("unreadable"), "second");
}

TEST_F(CheckpointStoreTest, WhatOlderVersionsHaveLeftIsRemovedWhenReopened) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(5, "data"));
  const std::vector<std::string> named = FilesInManifest(id);
  const std::string folder = absl::StrCat(kFolder, "/job/", id);
  ASSERT_OK(Write(folder + "/shard-00000.99", "lost a race with the commit"));
  ASSERT_OK(Write(folder + "/notes.txt", "of an operator"));
  ASSERT_OK(files_.MakeFolder(folder + "0.staging"));
  ASSERT_OK(Write(folder + "0.staging/shard-00000.98", "open"));
  ASSERT_OK(files_.MakeFolder(folder + "1.deleted"));
  // It does not count for anything before, either.
  EXPECT_OK(store_->CheckManifest("job", id));
  EXPECT_EQ(Download(id, 0).value_or("unreadable"), "data");
  Reopen();
  EXPECT_EQ(Download(id, 0).value_or("unreadable"), "data");
  std::vector<std::string> left = named;
  left.push_back("notes.txt");
  EXPECT_THAT(FilesOf(id), testing::UnorderedElementsAreArray(left));
  EXPECT_EQ(FoldersOfJob(), 1);
  ASSERT_OK(store_->Delete("job", id));
  EXPECT_EQ(FoldersOfJob(), 0);
}

TEST_F(CheckpointStoreTest, AFlippedBitOnDiskIsDataLoss) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(5, std::string(40, 'x')));
  ASSERT_OK(memory_.FlipBit(
      absl::StrCat(kFolder, "/job/", id, "/shard-00000.1"), 20));
  EXPECT_THAT(Download(id, 0), StatusIs(absl::StatusCode::kDataLoss,
                                        HasSubstr("older checkpoint")));
}

TEST_F(CheckpointStoreTest, ADamagedManifestIsNotListedAndNotRemoved) {
  ASSERT_OK_AND_ASSIGN(const std::string bad, Save(5, "x"));
  ASSERT_OK_AND_ASSIGN(const std::string good, Save(6, "y"));
  ASSERT_OK(
      memory_.FlipBit(absl::StrCat(kFolder, "/job/", bad, "/MANIFEST"), 60));
  Reopen();
  ASSERT_EQ(store_->List("job").size(), 1);
  EXPECT_EQ(store_->List("job").front().id, good);
  EXPECT_EQ(FoldersOfJob(), 2);
}

TEST_F(CheckpointStoreTest, LeftoversAreRemovedWhenReopened) {
  ASSERT_OK(Save(5, "x"));
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 6, 1, {}));
  ASSERT_OK(Upload(id, 0, "y"));
  EXPECT_EQ(FoldersOfJob(), 2);
  Reopen();
  EXPECT_EQ(FoldersOfJob(), 1);
  EXPECT_EQ(store_->List("job").size(), 1);
  EXPECT_THAT(Start(id, 0, "y").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("begin it")));
}

TEST_F(CheckpointStoreTest, AFullDiskFailsTheUploadAndNotTheCheckpoint) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 5, 1, {}));
  files_.FailNext("shard-00000", absl::ResourceExhaustedError("disk full"));
  EXPECT_THAT(Upload(id, 0, "data"),
              StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
  ASSERT_OK(Upload(id, 0, "data"));
  files_.FailNext("MANIFEST", absl::ResourceExhaustedError("disk full"));
  EXPECT_THAT(store_->Commit(FenceOf(), id),
              StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
  EXPECT_TRUE(store_->List("job").empty());
  ASSERT_OK(store_->Commit(FenceOf(), id));
  EXPECT_EQ(Download(id, 0).value_or("unreadable"), "data");
}

TEST_F(CheckpointStoreTest, ACommitWhoseLastSyncFailedCanBeRepeated) {
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 5, 1, {}));
  ASSERT_OK(Upload(id, 0, "data"));
  // Find the last mutation of a commit: everything before it succeeds.
  files_.CrashAfter(7);
  EXPECT_FALSE(store_->Commit(FenceOf(), id).ok());
  files_.Restart(UnsyncedData::kKept);
  EXPECT_TRUE(files_.List(absl::StrCat(kFolder, "/job/", id)).ok());
  EXPECT_TRUE(store_->List("job").empty());
  ASSERT_OK(store_->Commit(FenceOf(), id));
  EXPECT_EQ(Download(id, 0).value_or("unreadable"), "data");
}

TEST_F(CheckpointStoreTest, DeleteRemovesOpenAndComplete) {
  ASSERT_OK_AND_ASSIGN(const std::string complete, Save(5, "x"));
  ASSERT_OK_AND_ASSIGN(const std::string open,
                       store_->Begin(FenceOf(), 6, 1, {}));
  EXPECT_THAT(store_->Delete("other", complete),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("other")));
  ASSERT_OK(store_->Delete("job", complete));
  ASSERT_OK(store_->Delete("job", open));
  EXPECT_EQ(FoldersOfJob(), 0);
  EXPECT_FALSE(store_->Delete("job", open).ok());
  ASSERT_OK(Save(5, "again"));
}

TEST_F(CheckpointStoreTest, TheEndOfAGenerationDiscardsWhatItHadOpen) {
  ASSERT_OK_AND_ASSIGN(const std::string complete, Save(5, "x"));
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 6, 1, {}));
  ASSERT_OK_AND_ASSIGN(const auto upload, Start(id, 0, "y"));
  ASSERT_OK(upload->Append(0, "y", Crc32c("y")));
  store_->OnGenerationEnded("job", Generation(1), absl::AbortedError("lost"));
  EXPECT_THAT(upload->Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(id)));
  EXPECT_THAT(store_->Begin(FenceOf(), 6, 1, {}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("ended")));
  EXPECT_EQ(FoldersOfJob(), 1);
  EXPECT_EQ(store_->List("job").front().id, complete);
  EXPECT_OK(store_->Begin(FenceOf("job", 2), 6, 1, {}));
}

TEST_F(CheckpointStoreTest, JobNamesCannotLeaveTheFolder) {
  for (const char* job : {"", ".", "..", "a/b", "../x", "a b", "a\n"}) {
    EXPECT_THAT(
        store_->Begin(FenceOf(job), 5, 1, {}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("job name")))
        << job;
  }
  EXPECT_FALSE(store_->Begin(FenceOf(std::string(129, 'j')), 5, 1, {}).ok());
  EXPECT_FALSE(store_->StartDownload("job", "../secret", 0).ok());
  EXPECT_FALSE(store_->Delete("job", "..").ok());
}

TEST_F(CheckpointStoreTest, LimitsAreNamedInTheError) {
  const auto exhausted = [](const char* limit) {
    return StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(limit));
  };
  EXPECT_THAT(store_->Begin(FenceOf(), 1, 9, {}), exhausted("max_shards"));
  EXPECT_THAT(store_->Begin(FenceOf(), 1, 1, {{"k", std::string(100, 'v')}}),
              exhausted("max_metadata_bytes"));
  ASSERT_OK_AND_ASSIGN(const std::string id,
                       store_->Begin(FenceOf(), 1, 1, {}));
  EXPECT_THAT(store_->StartUpload(FenceOf(), id, 0, 1001, 0).status(),
              exhausted("max_shard_bytes"));
  EXPECT_THAT(store_->StartUpload(FenceOf(), id, 0, -1, 0).status(),
              exhausted("max_shard_bytes"));
  {
    std::vector<std::unique_ptr<ShardUpload>> uploads;
    for (int i = 0; i < 3; ++i) uploads.push_back(*Start(id, 0, "data"));
    EXPECT_THAT(Start(id, 0, "data").status(), exhausted("max_open_uploads"));
  }
  const std::string large(17, 'x');
  EXPECT_THAT((*Start(id, 0, large))->Append(0, large, Crc32c(large)),
              exhausted("max_chunk_bytes"));
  ASSERT_OK(store_->Begin(FenceOf(), 2, 1, {}));
  EXPECT_THAT(store_->Begin(FenceOf(), 3, 1, {}),
              exhausted("max_open_checkpoints"));
  ASSERT_OK(store_->Delete("job", id));
  for (int step = 10; step < 13; ++step) ASSERT_OK(Save(step, "x"));
  EXPECT_THAT(store_->Begin(FenceOf(), 13, 1, {}),
              exhausted("max_checkpoints_per_job"));
}

TEST_F(CheckpointStoreTest, ListsTheLastOneMadeFirstWhateverItsStep) {
  for (const int step : {5, 100, 20}) {
    ASSERT_OK(Save(step, "x"));
    clock_.Advance(absl::Seconds(1));
  }
  std::vector<int64_t> steps;
  for (const auto& record : store_->List("job")) steps.push_back(record.step);
  EXPECT_THAT(steps, testing::ElementsAre(20, 100, 5));
  EXPECT_TRUE(store_->List("other").empty());
}

TEST_F(CheckpointStoreTest, ANewGenerationReplacesAStepOfAnEarlierOne) {
  ASSERT_OK_AND_ASSIGN(const std::string first, Save(5, "first"));
  ASSERT_OK(Save(6, "other step"));
  ASSERT_OK(Save(7, "other step"));  // The limit: a replacement needs none.
  ASSERT_OK_AND_ASSIGN(const std::string second,
                       store_->Begin(FenceOf("job", 2), 5, 1, {}));
  EXPECT_EQ(Download(first, 0).value_or("missing"), "first");
  clock_.Advance(limits_.read_grace);
  ASSERT_OK(Upload(second, 0, "second", 2));
  ASSERT_OK(store_->Commit(FenceOf("job", 2), second));
  EXPECT_EQ(Download(second, 0).value_or("missing"), "second");
  EXPECT_FALSE(Download(first, 0).ok());
  EXPECT_EQ(store_->List("job").size(), 3);
  EXPECT_EQ(FoldersOfJob(), 3);
  Reopen();
  EXPECT_EQ(store_->List("job").size(), 3);
  EXPECT_THAT(store_->Begin(FenceOf("job", 2), 5, 1, {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(second)));
}

TEST_F(CheckpointStoreTest, OneJobCannotTakeAllPlaces) {
  limits_.max_open_checkpoints = 10;
  limits_.max_open_checkpoints_per_job = 2;
  Reopen();
  ASSERT_OK(store_->Begin(FenceOf("a"), 1, 1, {}));
  ASSERT_OK(store_->Begin(FenceOf("a"), 2, 1, {}));
  EXPECT_THAT(store_->Begin(FenceOf("a", 2), 3, 1, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_open_checkpoints_per_job")));
  EXPECT_OK(store_->Begin(FenceOf("b"), 3, 1, {}));
}

TEST_F(CheckpointStoreTest, SavesThatFailedDoNotUseUpTheJobsPlaces) {
  limits_.max_open_checkpoints = 10;
  Reopen();
  std::string last;
  for (int64_t step = 1; step <= 20; ++step) {
    ASSERT_OK_AND_ASSIGN(last, store_->Begin(FenceOf(), step, 1, {}));
  }
  EXPECT_EQ(FoldersOfJob(), limits_.max_open_checkpoints_per_job);
  ASSERT_OK(Upload(last, 0, "data"));
  EXPECT_OK(store_->Commit(FenceOf(), last));
  // Nor does a later one of a lower step take the place of a newer one.
  ASSERT_OK(store_->Begin(FenceOf(), 21, 1, {}));
  EXPECT_THAT(store_->Begin(FenceOf(), 2, 1, {}),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_open_checkpoints_per_job")));
}

TEST_F(CheckpointStoreTest, RangesOfAShardAreReadAlone) {
  const std::string data = "0123456789abcdefghijklmnopqrstuvwxyz";
  const std::string id = store_->Begin(FenceOf(), 1, 1, {}).value();
  ASSERT_OK(Upload(id, 0, data));
  ASSERT_OK(store_->Commit(FenceOf(), id).status());
  const auto read = [&](std::vector<ByteRange> ranges) {
    std::string text;
    auto download = store_->StartDownload("job", id, 0, std::move(ranges));
    if (!download.ok()) return download.status().ToString();
    EXPECT_EQ((*download)->bytes(), static_cast<int64_t>(data.size()));
    while (true) {
      const auto chunk = (*download)->Next();
      if (!chunk.ok()) return chunk.status().ToString();
      if (!chunk->has_value()) return text;
      EXPECT_LE((*chunk)->data.size(), limits_.max_chunk_bytes);
      EXPECT_EQ((*chunk)->crc32c, Crc32c((*chunk)->data));
      EXPECT_EQ((*chunk)->data,
                data.substr(static_cast<size_t>((*chunk)->offset),
                            (*chunk)->data.size()));
      text.append((*chunk)->data.data(), (*chunk)->data.size());
    }
  };
  EXPECT_EQ(read({{2, 3}, {5, 1}, {10, 20}}), "2345abcdefghijklmnopqrst");
  EXPECT_EQ(read({{35, 1}}), "z");
  for (const std::vector<ByteRange>& wrong :
       std::vector<std::vector<ByteRange>>{{{0, 0}},
                                           {{-1, 2}},
                                           {{0, -1}},
                                           {{30, 7}},
                                           {{0, 4}, {3, 2}},
                                           {{5, 1}, {2, 1}},
                                           {{1, INT64_MAX}},
                                           {{INT64_MAX, 1}}}) {
    EXPECT_THAT(read(wrong), HasSubstr("INVALID_ARGUMENT: the range of"));
  }
  std::vector<ByteRange> many(limits_.max_ranges + 1, ByteRange{0, 1});
  EXPECT_THAT(read(many), HasSubstr("the limit max_ranges of 4096"));
}

TEST_F(CheckpointStoreTest, DownloadsAtOnceAreLimited) {
  limits_.max_open_downloads = 1;
  Reopen();
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(5, "data"));
  {
    ASSERT_OK_AND_ASSIGN(const auto download,
                         store_->StartDownload("job", id, 0));
    EXPECT_THAT(store_->StartDownload("job", id, 0).status(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("max_open_downloads")));
  }
  EXPECT_OK(Download(id, 0));
}

class RetentionInStoreTest : public CheckpointStoreTest {
 protected:
  RetentionInStoreTest() {
    limits_.max_checkpoints_per_job = 20;
    Reopen();
    rules_.keep_last = 2;
  }
  absl::StatusOr<std::string> SaveWith(const RetentionRules& rules,
                                       int64_t step, int64_t generation = 1) {
    clock_.Advance(absl::Seconds(1));
    const Fence fence = FenceOf("job", generation);
    COXSWAIN_ASSIGN_OR_RETURN(const std::string id,
                              store_->Begin(fence, step, 1, {}));
    COXSWAIN_RETURN_IF_ERROR(Upload(id, 0, "data", generation));
    COXSWAIN_RETURN_IF_ERROR(store_->Commit(fence, id, rules).status());
    return id;
  }
  std::vector<int64_t> Steps() {
    std::vector<int64_t> steps;
    for (const auto& record : store_->List("job")) steps.push_back(record.step);
    EXPECT_EQ(FoldersOfJob(), steps.size());
    return steps;
  }

  RetentionRules rules_;
};

TEST_F(RetentionInStoreTest, ACommitDeletesWhatItsRulesDoNotKeep) {
  rules_.keep_every = 20;
  for (int64_t step = 10; step <= 60; step += 10) {
    ASSERT_OK(SaveWith({}, step));
  }
  EXPECT_EQ(Steps().size(), 6);
  ASSERT_OK(SaveWith(rules_, 70));
  EXPECT_THAT(Steps(), testing::ElementsAre(70, 60, 40, 20));
  ASSERT_OK(SaveWith(rules_, 80));
  EXPECT_THAT(Steps(), testing::ElementsAre(80, 70, 60, 40, 20));
}

TEST_F(RetentionInStoreTest, WithoutRulesOfItsOwnThoseOfTheCoordinatorCount) {
  store_->SetDefaultRetention(rules_);
  for (int64_t step = 10; step <= 40; step += 10) {
    ASSERT_OK(SaveWith({}, step));
  }
  EXPECT_THAT(Steps(), testing::ElementsAre(40, 30));
  rules_.keep_last = 3;
  ASSERT_OK(SaveWith(rules_, 50));
  EXPECT_THAT(Steps(), testing::ElementsAre(50, 40, 30));
}

TEST_F(RetentionInStoreTest, ARunFromScratchKeepsItsOwnAndNotTheHigherSteps) {
  ASSERT_OK(SaveWith({}, 900));
  ASSERT_OK(SaveWith({}, 1000));
  ASSERT_OK(SaveWith(rules_, 0, 2));
  EXPECT_THAT(Steps(), testing::ElementsAre(0, 1000));
}

TEST_F(RetentionInStoreTest, WhatIsReadStaysForAWhile) {
  ASSERT_OK_AND_ASSIGN(const std::string read, SaveWith({}, 10));
  ASSERT_OK(SaveWith({}, 20));
  {
    ASSERT_OK_AND_ASSIGN(const auto download,
                         store_->StartDownload("job", read, 0));
    clock_.Advance(absl::Hours(2));
    ASSERT_OK(SaveWith(rules_, 30));
    ASSERT_OK(SaveWith(rules_, 40));
    EXPECT_THAT(Steps(), testing::ElementsAre(40, 30, 10));
  }
  // Its next shard may be asked for.
  clock_.Advance(limits_.read_grace - absl::Seconds(2));
  ASSERT_OK(SaveWith(rules_, 50));
  EXPECT_THAT(Steps(), testing::ElementsAre(50, 40, 10));
  clock_.Advance(absl::Seconds(2));
  ASSERT_OK(SaveWith(rules_, 60));
  EXPECT_THAT(Steps(), testing::ElementsAre(60, 50));
}

TEST_F(RetentionInStoreTest, WhatIsReadIsNotReplacedEither) {
  ASSERT_OK_AND_ASSIGN(const std::string read, SaveWith({}, 10));
  {
    ASSERT_OK_AND_ASSIGN(const auto download,
                         store_->StartDownload("job", read, 0));
    ASSERT_OK(SaveWith({}, 10, 2));
    EXPECT_THAT(Steps(), testing::ElementsAre(10, 10));
    EXPECT_OK(download->Next());
  }
  clock_.Advance(limits_.read_grace);
  ASSERT_OK(SaveWith({}, 10, 3));
  EXPECT_THAT(Steps(), testing::ElementsAre(10));
}

TEST_F(RetentionInStoreTest, RulesCountAlsoForAJobThatHasAsManyAsItMay) {
  limits_.max_checkpoints_per_job = 4;
  Reopen();
  for (int64_t step = 10; step <= 40; step += 10) ASSERT_OK(SaveWith({}, step));
  EXPECT_THAT(SaveWith({}, 50), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("delete old")));
  store_->SetDefaultRetention(rules_);
  ASSERT_OK(SaveWith({}, 50));
  EXPECT_THAT(Steps(), testing::ElementsAre(50, 40));
}

TEST_F(RetentionInStoreTest, ANegativeRuleIsRefusedBeforeAnythingIsDone) {
  rules_.keep_last = -1;
  EXPECT_THAT(SaveWith(rules_, 10), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("keep_last")));
  EXPECT_TRUE(store_->List("job").empty());
}

TEST_F(RetentionInStoreTest, ADiskThatCannotDeleteDoesNotFailTheCommit) {
  ASSERT_OK_AND_ASSIGN(const std::string first, SaveWith({}, 10));
  ASSERT_OK(SaveWith({}, 20));
  files_.FailNext(first, absl::DataLossError("bad disk"));
  ASSERT_OK(SaveWith(rules_, 30));
  EXPECT_THAT(Steps(), testing::ElementsAre(30, 20, 10));
  ASSERT_OK(SaveWith(rules_, 40));
  EXPECT_THAT(Steps(), testing::ElementsAre(40, 30));
}

class ImportTest : public RetentionInStoreTest {
 protected:
  static Fence Operator(uint64_t request, const std::string& job = "job") {
    Fence fence = FenceOf(job, 0);
    fence.request_id = request;
    return fence;
  }
  absl::StatusOr<std::string> BeginImport(uint64_t request, int64_t step,
                                          const std::string& job = "job") {
    return store_->BeginImport(Operator(request, job), step, 1, {}, made_);
  }
  absl::StatusOr<std::string> Import(uint64_t request, int64_t step) {
    COXSWAIN_ASSIGN_OR_RETURN(const std::string id, BeginImport(request, step));
    COXSWAIN_RETURN_IF_ERROR(Upload(id, 0, "data", 0));
    COXSWAIN_RETURN_IF_ERROR(store_->Commit(Operator(request), id).status());
    return id;
  }

  const absl::Time made_ = absl::FromUnixSeconds(1000);
};

TEST_F(ImportTest, KeepsItsDateAndIsOlderThanWhatRunsHere) {
  ASSERT_OK(SaveWith({}, 10));
  ASSERT_OK(Import(1, 500));
  EXPECT_THAT(Steps(), testing::ElementsAre(10, 500));
  Reopen();
  EXPECT_THAT(Steps(), testing::ElementsAre(10, 500));
  EXPECT_EQ(store_->List("job").back().created, made_);
  EXPECT_EQ(store_->List("job").back().generation, Generation(0));
}

TEST_F(ImportTest, NeitherRetentionNorTheSameStepDeletesIt) {
  ASSERT_OK(Import(1, 10));
  for (int64_t step = 10; step <= 40; step += 10) {
    ASSERT_OK(SaveWith(rules_, step));
  }
  EXPECT_THAT(Steps(), testing::ElementsAre(40, 30, 10));
  // Nor does it delete others for itself.
  store_->SetDefaultRetention(rules_);
  ASSERT_OK(Import(2, 11));
  EXPECT_EQ(Steps().size(), 4);
}

TEST_F(ImportTest, ANewOneTakesThePlaceOfOneThatWasAbandoned) {
  ASSERT_OK_AND_ASSIGN(const std::string first, BeginImport(1, 10));
  EXPECT_EQ(BeginImport(1, 10).value_or("other"), first) << "a retry";
  ASSERT_OK(Upload(first, 0, "of the first", 0));
  ASSERT_OK_AND_ASSIGN(const std::string second, BeginImport(2, 10));
  EXPECT_NE(second, first);
  EXPECT_EQ(FoldersOfJob(), 1);
  // Nothing of the first is part of the second.
  EXPECT_THAT(
      store_->Commit(Operator(2), second),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("missing: 0")));
  EXPECT_THAT(store_->Commit(Operator(1), first),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
}

TEST_F(ImportTest, AMemberCannotTouchItNorAnOperatorAMembers) {
  ASSERT_OK_AND_ASSIGN(const std::string import, BeginImport(1, 10));
  ASSERT_OK_AND_ASSIGN(const std::string member,
                       store_->Begin(FenceOf(), 10, 1, {}));
  EXPECT_NE(import, member);
  EXPECT_THAT(Upload(import, 0, "x", 1),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  EXPECT_THAT(Upload(member, 0, "x", 0),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
}

TEST_F(ImportTest, OneOfAStepIsEnough) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Import(1, 10));
  EXPECT_THAT(BeginImport(2, 10),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(id)));
  EXPECT_THAT(BeginImport(0, 11), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("request id")));
}

TEST_F(ImportTest, OpenOnesAreFew) {
  limits_.max_open_imports = 1;
  Reopen();
  ASSERT_OK(BeginImport(1, 10, "a"));
  EXPECT_THAT(BeginImport(2, 10, "b"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("max_open_imports")));
  ASSERT_OK(BeginImport(3, 10, "a"));
}

TEST_F(CheckpointStoreTest, AManifestDamagedSinceIsNoticed) {
  ASSERT_OK_AND_ASSIGN(const std::string id, Save(5, "data"));
  EXPECT_OK(store_->CheckManifest("job", id));
  EXPECT_THAT(store_->CheckManifest("job", "other"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  ASSERT_OK(
      memory_.FlipBit(absl::StrCat("/checkpoints/job/", id, "/MANIFEST"), 60));
  EXPECT_THAT(store_->CheckManifest("job", id),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(id)));
}

}  // namespace
}  // namespace coxswain::server
