#include "server/storage/memory_file_system.h"

#include <memory>
#include <string>

#include "base/status_matchers.h"
#include "server/storage/fault_file_system.h"
#include "tests/conformance/file_system_conformance.h"

namespace coxswain::server {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Memory, FileSystemConformance,
    testing::Values(FileSystemCase{
        "memory", [] { return std::make_unique<MemoryFileSystem>(); }, nullptr,
        [] { return std::string(); }}));

std::string ReadAll(const FileSystem& files, const std::string& path) {
  const auto file = files.Open(path);
  if (!file.ok()) return std::string(file.status().message());
  return (*file)->Read(0, 1000).value_or("unreadable");
}

TEST(MemoryFileSystemTest, ACrashLosesWhatWasNotSynced) {
  MemoryFileSystem files;
  ASSERT_OK_AND_ASSIGN(const auto file, files.Create("/file"));
  ASSERT_OK(file->Append("synced"));
  ASSERT_OK(file->Sync());
  ASSERT_OK(files.SyncFolder("/"));
  ASSERT_OK(file->Append(" and not"));
  ASSERT_OK(files.Create("/unsynced"));
  files.Crash(UnsyncedData::kLost);
  EXPECT_EQ(ReadAll(files, "/file"), "synced");
  EXPECT_FALSE(files.Open("/unsynced").ok());
}

TEST(MemoryFileSystemTest, ACrashUndoesARenameThatWasNotSynced) {
  MemoryFileSystem files;
  ASSERT_OK(files.MakeFolder("/a"));
  ASSERT_OK(files.SyncFolder("/"));
  ASSERT_OK(files.Rename("/a", "/b"));
  files.Crash(UnsyncedData::kLost);
  EXPECT_THAT(*files.List("/"), testing::ElementsAre("a"));
  ASSERT_OK(files.Rename("/a", "/b"));
  ASSERT_OK(files.SyncFolder("/"));
  files.Crash(UnsyncedData::kLost);
  EXPECT_THAT(*files.List("/"), testing::ElementsAre("b"));
}

TEST(MemoryFileSystemTest, ATornCrashKeepsNamesAndHalfOfTheData) {
  MemoryFileSystem files;
  ASSERT_OK_AND_ASSIGN(const auto file, files.Create("/file"));
  ASSERT_OK(file->Append("12345678"));
  files.Crash(UnsyncedData::kTorn);
  EXPECT_EQ(ReadAll(files, "/file"), "1234");
}

TEST(FaultFileSystemTest, CountsMutationsAndGoesDownWhenTold) {
  MemoryFileSystem memory;
  FaultFileSystem files(&memory);
  files.CrashAfter(2);
  ASSERT_OK_AND_ASSIGN(const auto file, files.Create("/file"));
  ASSERT_OK(file->Append("x"));
  const auto down = StatusIs(absl::StatusCode::kUnavailable, testing::_);
  EXPECT_THAT(file->Sync(), down);
  EXPECT_THAT(files.List("/"), down);
  EXPECT_EQ(files.mutations(), 2);
  files.Restart(UnsyncedData::kKept);
  EXPECT_EQ(ReadAll(files, "/file"), "x");
}

TEST(FaultFileSystemTest, FailsOneMutationOfAPath) {
  MemoryFileSystem memory;
  FaultFileSystem files(&memory);
  files.FailNext("bad", absl::ResourceExhaustedError("disk full"));
  EXPECT_OK(files.MakeFolder("/good"));
  EXPECT_THAT(files.MakeFolder("/bad"),
              StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
  EXPECT_OK(files.MakeFolder("/bad"));
}

}  // namespace
}  // namespace coxswain::server
