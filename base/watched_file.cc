#include "base/watched_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

WatchedFile::Mark WatchedFile::MarkOf(const std::string& path) {
  Mark mark;
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return mark;
  mark.device = status.st_dev;
  mark.inode = status.st_ino;
  mark.size = status.st_size;
  mark.modified_ns = Nanoseconds(status.st_mtim);
  mark.changed_ns = Nanoseconds(status.st_ctim);
  return mark;
}

bool WatchedFile::Changed() const {
  if (!read_) return true;
  const Mark now = MarkOf(path_);
  return now.device != mark_.device || now.inode != mark_.inode ||
         now.size != mark_.size || now.modified_ns != mark_.modified_ns ||
         now.changed_ns != mark_.changed_ns;
}

absl::StatusOr<std::string> WatchedFile::Read() {
  // Before it is read: what is written meanwhile is seen as a change.
  mark_ = MarkOf(path_);
  read_ = true;
  if (mark_.size > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " has ", mark_.size,
                                                   " bytes; at most ",
                                                   kMaxBytes, " are read"));
  }
  std::ifstream file(path_, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file.good()) {
    return absl::ErrnoToStatus(errno == 0 ? EIO : errno,
                               absl::StrCat("cannot read ", path_));
  }
  return text.str();
}

}  // namespace coxswain
