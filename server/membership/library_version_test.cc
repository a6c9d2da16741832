#include "server/membership/library_version.h"

#include <string>

#include "base/status_matchers.h"
#include "base/version.h"

namespace coxswain::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LibraryVersionTest, ASeriesIsMajorAndMinor) {
  EXPECT_EQ(LibrarySeries("0.1.0"), "0.1");
  EXPECT_EQ(LibrarySeries("12.34.56"), "12.34");
  EXPECT_EQ(LibrarySeries("0.2.0-rc.1"), "0.2");
  // Itself, so that two of them differ.
  for (const char* const none : {"", "0.1", "0.1.0.2", "0.1.x", "v0.1.0",
                                 "-1.0.0", "0.1. 0", "0.99999999999.0"}) {
    EXPECT_EQ(LibrarySeries(none), none);
  }
}

TEST(LibraryVersionTest, TheCoordinatorMayBeOneMinorVersionAhead) {
  for (const char* const worker : {"1.3.0", "1.3.9", "1.2.0", "1.2.7-rc1"}) {
    EXPECT_OK(CheckLibraryVersion(worker, "1.3.2")) << worker;
  }
  EXPECT_OK(CheckLibraryVersion("1.0.5", "1.0.0"));
  EXPECT_OK(CheckLibraryVersion(kVersion, kVersion));
}

TEST(LibraryVersionTest, TheErrorNamesTheSideToUpgrade) {
  for (const char* const newer : {"1.4.0", "2.0.0", "2.3.2", "1.4294967295.0"})
    EXPECT_THAT(CheckLibraryVersion(newer, "1.3.2"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(newer), HasSubstr("1.3.2"),
                               HasSubstr("upgrade the coordinator first"))));
  for (const char* const older : {"1.1.9", "0.3.2", "0.9.0", "1.0.0"})
    EXPECT_THAT(CheckLibraryVersion(older, "1.3.2"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(older), HasSubstr("1.3.2"),
                               HasSubstr("build the worker anew"))));
  // Not the last of one major version with the first of the next.
  EXPECT_THAT(CheckLibraryVersion("1.9.0", "2.0.0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, testing::_));
}

TEST(LibraryVersionTest, WhatIsNoVersionIsRefused) {
  EXPECT_THAT(CheckLibraryVersion("new\n", "1.3.2"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'new\\n', which is no version")));
  EXPECT_THAT(CheckLibraryVersion(std::string(5000, '1'), "1.3.2"),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

}  // namespace
}  // namespace coxswain::server
