#include "server/storage/posix_file_system.h"

#include <cstdlib>
#include <string>

#include "base/status_matchers.h"
#include "tests/conformance/file_system_conformance.h"

namespace coxswain::server {
namespace {

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
