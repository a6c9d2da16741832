#include "cli/commands.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(VersionTest, NamesTheProgramTheWireAndGpus) {
  EXPECT_THAT(VersionText(),
              AllOf(StartsWith(absl::StrCat("coxswain ", kVersion, "\n")),
                    HasSubstr("\ngRPC "), HasSubstr("\nprotobuf "),
                    HasSubstr("\nCUDA")));
}

TEST(VersionTest, NamesABuildWithoutCuda) {
  EXPECT_EQ(GpuVersionText(0, 0, absl::UnimplementedError("none")),
            "CUDA: built without, so gradients stay on the CPU\n");
}

TEST(VersionTest, NamesABuildWithoutNccl) {
  EXPECT_EQ(GpuVersionText(12060, 0, absl::UnimplementedError("none")),
            "CUDA 12.6\nNCCL: built without\n");
}

TEST(VersionTest, TheLibraryMayBeAnotherVersionOrMissing) {
  EXPECT_EQ(GpuVersionText(13000, 22809, 22602),
            "CUDA 13.0\nNCCL 2.28.9 (header); library 2.26.2\n");
  EXPECT_EQ(GpuVersionText(13000, 22809, absl::NotFoundError("no file")),
            "CUDA 13.0\nNCCL 2.28.9 (header); library not usable: no file\n");
}

}  // namespace
}  // namespace coxswain
