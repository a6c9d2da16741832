#include "tests/support/file_store.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/unique_fd.h"

namespace coxswain {

std::string FileStore::PathOf(absl::string_view key) const {
  return absl::StrCat(folder_, "/", absl::WebSafeBase64Escape(key));
}

absl::Status FileStore::Set(absl::string_view key, absl::string_view value) {
  const std::string path = PathOf(key);
  // No reader sees half of it. Another rank does not write the same key.
  const std::string half = absl::StrCat(path, ".half");
  std::ofstream(half, std::ios::binary) << value;
  if (std::rename(half.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write ", path, "; does the folder exist?"));
}

absl::StatusOr<std::string> FileStore::Get(absl::string_view key,
                                           absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  // The watch comes first, so that what is written after the look is noticed.
  const UniqueFd changes(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (inotify_add_watch(changes.get(), folder_.c_str(), IN_MOVED_TO) < 0) {
    return absl::UnavailableError(absl::StrCat("cannot watch ", folder_));
  }
  while (true) {
    if (std::ifstream file(PathOf(key), std::ios::binary); file) {
      std::ostringstream value;
      value << file.rdbuf();
      return value.str();
    }
    const absl::Duration left = deadline - Clock::Real()->Now();
    pollfd entry = {changes.get(), POLLIN, 0};
    const timespec time =
        absl::ToTimespec(std::max(left, absl::ZeroDuration()));
    if (left <= absl::ZeroDuration() || ppoll(&entry, 1, &time, nullptr) == 0) {
      return absl::DeadlineExceededError(absl::StrCat("no key '", key, "'"));
    }
    char events[4096];
    (void)!read(changes.get(), events, sizeof(events));
  }
}

}  // namespace coxswain
