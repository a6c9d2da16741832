#include "server/open_state.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"

namespace {

// Returns the folders that this process has synced.
std::set<std::string>& Synced() {
  static auto& synced = *new std::set<std::string>;
  return synced;
}

}  // namespace

// Replaces the system's own for this whole program.
extern "C" int fsync(int fd) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink(
      "/proc/self/fd/" + std::to_string(fd), error);
  if (!error) Synced().insert(path.string());
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace coxswain::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ParseStateLocationTest, AFolder) {
  ASSERT_OK_AND_ASSIGN(const auto location, ParseStateLocation("sqlite:a/b"));
  EXPECT_EQ(location.folder, "a/b");
  EXPECT_FALSE(location.is_etcd());
}

TEST(ParseStateLocationTest, MembersOfEtcdAndAPrefix) {
  ASSERT_OK_AND_ASSIGN(const auto location,
                       ParseStateLocation("etcd://a:1,[::1]:2379/x/y//"));
  EXPECT_THAT(location.etcd_endpoints, ElementsAre("a:1", "[::1]:2379"));
  EXPECT_EQ(location.etcd_prefix, "x/y/");
  EXPECT_EQ(ParseStateLocation("etcd://a:1")->etcd_prefix, "coxswain/");
  EXPECT_EQ(ParseStateLocation("etcd://a:1/")->etcd_prefix, "coxswain/");
}

TEST(ParseStateLocationTest, WhatIsNeitherIsRefusedWithTheRightForms) {
  for (const char* text :
       {"", "state", "etcd:a:1", "sqlite:", "etcd://", "etcd://a", "etcd://:1",
        "etcd://a:0", "etcd://a:65536", "etcd://a:1,", "etcd://a:x",
        "etcd://::1:1", "etcd://me@a:1", "etcd://a:1/b c", "http://a:1"}) {
    EXPECT_THAT(ParseStateLocation(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::AllOf(HasSubstr(absl::StrCat("'", text, "'")),
                                        HasSubstr("etcd://HOST:PORT"))))
        << text;
  }
}

TEST(AcquireStateTest, AFileIsHeldAndNotGivenTwice) {
  StateLocation location;
  location.folder =
      absl::StrCat(testing::TempDir(), "/open-state-", getpid(), "/deep");
  ASSERT_OK_AND_ASSIGN(const auto state, AcquireState(location, {}));
  EXPECT_TRUE(state->Held());
  EXPECT_OK(state->store().Put("table", "key", "value"));
  EXPECT_THAT(AcquireState(location, {}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("another")));
}

// Or a crash of the machine would take all of the state, whatever of it had
// been synced.
TEST(AcquireStateTest, TheFoldersAboveANewOneAreSynced) {
  const std::filesystem::path root =
      std::filesystem::canonical(testing::TempDir()) /
      absl::StrCat("open-state-above-", getpid());
  StateLocation location;
  location.folder = root / "a" / "b";
  Synced().clear();
  ASSERT_OK(AcquireState(location, {}));
  EXPECT_THAT(Synced(),
              testing::IsSupersetOf({root.parent_path().string(), root.string(),
                                     (root / "a").string()}));
}

TEST(AcquireStateTest, ALeaseOutOfRangeIsRefused) {
  AcquireOptions options;
  options.leader_lease = absl::Milliseconds(500);
  EXPECT_THAT(
      AcquireState({}, options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leader_lease")));
}

}  // namespace
}  // namespace coxswain::server
