#include "cli/port_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"

namespace coxswain {

absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  FILE* const file = std::fopen(temporary.c_str(), "we");
  if (file == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", temporary));
  }
  bool written = std::fprintf(file, "%d\n", port) > 0;
  written = std::fclose(file) == 0 && written;
  if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status =
        absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
    unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace coxswain
