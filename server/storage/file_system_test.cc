#include "server/storage/file_system.h"

#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "server/storage/fault_file_system.h"
#include "server/storage/fenced_file_system.h"
#include "server/storage/memory_file_system.h"
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

TEST(FaultFileSystemTest, CountsMutationsAndGoesDownOnRequest) {
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

using testing::AllOf;
using testing::HasSubstr;

class Allowed : public FencedFileSystem {
 public:
  Allowed() : FencedFileSystem(&memory_, [] { return absl::OkStatus(); }) {}

 private:
  MemoryFileSystem memory_;
};

INSTANTIATE_TEST_SUITE_P(Fenced, FileSystemConformance,
                         testing::Values(FileSystemCase{
                             "fenced",
                             [] { return std::make_unique<Allowed>(); },
                             nullptr, [] { return std::string(); }}));

class FencedFileSystemTest : public testing::Test {
 protected:
  FencedFileSystemTest() : files_(&memory_, [this] { return may_change_; }) {}

  MemoryFileSystem memory_;
  absl::Status may_change_;
  FencedFileSystem files_;
};

TEST_F(FencedFileSystemTest, ChangesNothingOnceItMayNotButReads) {
  ASSERT_OK_AND_ASSIGN(const auto file, files_.Create("/file"));
  ASSERT_OK(file->Append("before"));
  may_change_ = absl::UnavailableError("another one leads");
  const auto refused =
      StatusIs(absl::StatusCode::kUnavailable, "another one leads");
  EXPECT_THAT(file->Append(" and after"), refused);
  EXPECT_THAT(file->AppendAll({" and", " after"}), refused);
  EXPECT_THAT(file->Sync(), refused);
  EXPECT_THAT(files_.Create("/other"), refused);
  EXPECT_THAT(files_.MakeFolder("/folder"), refused);
  EXPECT_THAT(files_.SyncFolder("/"), refused);
  EXPECT_THAT(files_.Rename("/file", "/other"), refused);
  EXPECT_THAT(files_.RemoveTree("/file"), refused);
  EXPECT_OK(file->Close());
  EXPECT_THAT(*files_.List("/"), testing::ElementsAre("file"));
  ASSERT_OK_AND_ASSIGN(const auto read, files_.Open("/file"));
  EXPECT_EQ(read->Read(0, 100).value_or("unreadable"), "before");
}

TEST(FencedFileSystemLossTest, AFailureIsExplainedByTheLossOfTheRight) {
  MemoryFileSystem memory;
  int asked = 0;
  FencedFileSystem files(&memory, [&asked]() -> absl::Status {
    if (asked++ == 0) return absl::OkStatus();
    return absl::UnavailableError("another one leads");
  });
  EXPECT_THAT(
      files.Rename("/nowhere", "/there"),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("another one leads"), HasSubstr("/nowhere"))));
}

std::string MakeTempFolder() {
  std::string path = testing::TempDir() + "/files-XXXXXX";
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path;
}

INSTANTIATE_TEST_SUITE_P(Posix, FileSystemConformance,
                         testing::Values(FileSystemCase{"posix", nullptr,
                                                        PosixFileSystem(),
                                                        MakeTempFolder}));

TEST(PosixFileSystemTest, AFullDiskIsResourceExhausted) {
  // The device that answers every write with ENOSPC.
  ASSERT_OK_AND_ASSIGN(const auto file, PosixFileSystem()->Create("/dev/full"));
  EXPECT_THAT(file->Append("x"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr("cannot write /dev/full")));
}

}  // namespace
}  // namespace coxswain::server
