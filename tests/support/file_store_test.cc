#include "tests/support/file_store.h"

#include <stdlib.h>

#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::HasSubstr;

std::string NewFolder() {
  std::string name = ::testing::TempDir() + "/storeXXXXXX";
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  return name;
}

TEST(FileStoreTest, AnotherStoreOnTheSameFolderSeesTheValue) {
  const std::string folder = NewFolder();
  const std::string value("a\0b\n", 4);
  ASSERT_OK(FileStore(folder).Set("tcp/bench/0", value));
  ASSERT_OK(FileStore(folder).Set("tcp%2Fbench/0", "another key"));
  ASSERT_OK_AND_ASSIGN(const std::string seen,
                       FileStore(folder).Get("tcp/bench/0", absl::Seconds(10)));
  EXPECT_EQ(seen, value);
}

TEST(FileStoreTest, AMissingKeyIsAnErrorInTime) {
  EXPECT_THAT(FileStore(NewFolder()).Get("k", absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("'k'")));
}

TEST(FileStoreTest, AMissingFolderIsAnError) {
  EXPECT_THAT(FileStore("/nonexistent").Set("k", "v"),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("does the folder exist")));
}

}  // namespace
}  // namespace coxswain
