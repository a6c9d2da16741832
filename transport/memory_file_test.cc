#include "transport/memory_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

std::string ContentsOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return file.good() ? text.str() : "cannot be read";
}

time_t ModifiedAt(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mtime;
}

TEST(MemoryFileTest, HasNothingToReadBeforeItIsSet) {
  const MemoryFile file;
  ASSERT_TRUE(file.valid());
  const UniqueFd opened(open(file.path().c_str(), O_RDONLY));
  EXPECT_FALSE(opened.valid());
  EXPECT_EQ(errno, ENXIO);
}

TEST(MemoryFileTest, IsReplacedInOnePiece) {
  MemoryFile file;
  ASSERT_OK(file.Set("a long first text"));
  EXPECT_EQ(ContentsOf(file.path()), "a long first text");
  std::ifstream before(file.path());
  ASSERT_OK(file.Set("second"));
  EXPECT_EQ(ContentsOf(file.path()), "second");
  // Who has opened it before reads on as if nothing had happened.
  std::string rest;
  std::getline(before, rest);
  EXPECT_EQ(rest, "a long first text");
}

TEST(MemoryFileTest, EachContentsHasATimeOfItsOwn) {
  MemoryFile file;
  ASSERT_OK(file.Set("one"));
  const time_t first = ModifiedAt(file.path());
  EXPECT_NE(first, 0);  // gRPC takes it for an error.
  ASSERT_OK(file.Set("one"));
  EXPECT_NE(ModifiedAt(file.path()), first);
}

TEST(MemoryFileTest, IsForThisUserAlone) {
  MemoryFile file;
  ASSERT_OK(file.Set("key"));
  struct stat status = {};
  ASSERT_EQ(stat(file.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0400u);
}

// Else a late reader could find any file of the process under that path.
TEST(MemoryFileTest, ItsPathNamesNoOtherFileAfterwards) {
  auto file = std::make_unique<MemoryFile>();
  ASSERT_OK(file->Set("key"));
  const std::string path = file->path();
  file.reset();
  const UniqueFd other(open("/dev/zero", O_RDONLY));
  EXPECT_EQ(ContentsOf(path), "cannot be read");
  const MemoryFile next;
  EXPECT_EQ(next.path(), path);  // Descriptors are used again.
}

}  // namespace
}  // namespace coxswain
