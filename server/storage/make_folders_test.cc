#include <cstdint>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "server/storage/fault_file_system.h"
#include "server/storage/file_system.h"
#include "server/storage/memory_file_system.h"

namespace coxswain::server {
namespace {

using testing::_;
using testing::ElementsAre;

// Returns what is in the folder; nothing if there is none.
std::vector<std::string> NamesIn(const FileSystem& files,
                                 const std::string& folder) {
  return files.List(folder).value_or(std::vector<std::string>());
}

TEST(MakeFoldersTest, AllOfThemSurviveACrash) {
  MemoryFileSystem files;
  ASSERT_OK(MakeFolders(&files, "/a/b/c"));
  files.Crash(UnsyncedData::kLost);
  EXPECT_THAT(NamesIn(files, "/a/b"), ElementsAre("c"));
}

TEST(MakeFoldersTest, FoldersThatAreThereAreNoError) {
  MemoryFileSystem files;
  ASSERT_OK(MakeFolders(&files, "/a/b"));
  EXPECT_OK(MakeFolders(&files, "/a/b/"));
  EXPECT_OK(MakeFolders(&files, "/a//b/c//"));
  EXPECT_THAT(NamesIn(files, "/a/b"), ElementsAre("c"));
}

// The first start ends after each of its steps, a second one is whole, and only
// then the power fails.
TEST(MakeFoldersTest, WhatWasCutShortIsMadeGoodByTheNextCall) {
  MemoryFileSystem whole;
  FaultFileSystem counted(&whole);
  ASSERT_OK(MakeFolders(&counted, "/a/b/c"));
  ASSERT_EQ(counted.mutations(), 6);
  for (int64_t step = 0; step < counted.mutations(); ++step) {
    MemoryFileSystem files;
    FaultFileSystem first(&files);
    first.CrashAfter(step);
    EXPECT_THAT(MakeFolders(&first, "/a/b/c"),
                StatusIs(absl::StatusCode::kUnavailable, _));
    ASSERT_OK(MakeFolders(&files, "/a/b/c"));
    files.Crash(UnsyncedData::kLost);
    EXPECT_THAT(NamesIn(files, "/a/b"), ElementsAre("c")) << step;
  }
}

// A folder that cannot be synced.
class OddFolder : public MemoryFileSystem {
 public:
  explicit OddFolder(absl::Status error) : error_(std::move(error)) {}
  absl::Status SyncFolder(const std::string& path) override {
    return path == "/odd" ? error_ : MemoryFileSystem::SyncFolder(path);
  }

 private:
  const absl::Status error_;
};

// One that others own, such as /var/lib/private, or an autofs such as /home.
TEST(MakeFoldersTest, AFolderAboveThatCannotBeSyncedIsNoError) {
  for (const absl::Status& error :
       {absl::PermissionDeniedError("it may not be read"),
        absl::InvalidArgumentError("it has no sync")}) {
    OddFolder files(error);
    ASSERT_OK(files.MakeFolder("/odd"));
    EXPECT_OK(MakeFolders(&files, "/odd/a"));
  }
}

TEST(MakeFoldersTest, ADiskThatFailsIsAnError) {
  OddFolder files(absl::UnavailableError("I/O error"));
  ASSERT_OK(files.MakeFolder("/odd"));
  EXPECT_THAT(MakeFolders(&files, "/odd/a"),
              StatusIs(absl::StatusCode::kUnavailable, _));
}

TEST(MakeFoldersTest, AFileInTheWayIsAnError) {
  MemoryFileSystem files;
  ASSERT_OK(files.Create("/a"));
  EXPECT_THAT(MakeFolders(&files, "/a/b"),
              StatusIs(absl::StatusCode::kAlreadyExists, _));
}

}  // namespace
}  // namespace coxswain::server
