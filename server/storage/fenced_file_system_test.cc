#include "server/storage/fenced_file_system.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/status_matchers.h"
#include "server/storage/memory_file_system.h"
#include "tests/conformance/file_system_conformance.h"

namespace coxswain::server {
namespace {

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

}  // namespace
}  // namespace coxswain::server
