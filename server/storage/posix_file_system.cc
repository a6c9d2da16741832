#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/storage/file_system.h"

namespace coxswain::server {
namespace {

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
      return absl::StatusCode::kNotFound;
    case EEXIST:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::StatusCode::kResourceExhausted;
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case EBUSY:
      return absl::StatusCode::kFailedPrecondition;
    case ENAMETOOLONG:
    case EINVAL:
      return absl::StatusCode::kInvalidArgument;
    case EIO:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Returns the error of errno, which it reads first: the only such function.
absl::Status ErrnoStatus(absl::string_view operation, const std::string& path) {
  const int error = errno;
  return absl::Status(CodeOf(error),
                      absl::StrCat("cannot ", operation, " ", path, ": ",
                                   std::generic_category().message(error)));
}

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

  absl::Status Sync() const {
    if (fsync(fd_) != 0) return ErrnoStatus("sync", path_);
    return absl::OkStatus();
  }
  absl::Status Close() {
    const int fd = fd_;
    fd_ = -1;
    if (fd >= 0 && close(fd) != 0) return ErrnoStatus("close", path_);
    return absl::OkStatus();
  }

 private:
  int fd_;
  const std::string path_;
};

int OpenRetrying(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int fd, const std::string& path) : file_(fd, path) {}

  absl::Status Append(absl::string_view data) override {
    return AppendAll(absl::MakeConstSpan(&data, 1));
  }

  absl::Status AppendAll(absl::Span<const absl::string_view> pieces) override {
    std::vector<iovec> rest;
    rest.reserve(pieces.size());
    for (const absl::string_view piece : pieces) {
      rest.push_back({const_cast<char*>(piece.data()), piece.size()});
    }
    size_t first = 0;
    while (DropWritten(0, &rest, &first)) {
      const ssize_t written = writev(
          file_.fd(), &rest[first],
          static_cast<int>(std::min<size_t>(rest.size() - first, IOV_MAX)));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus("write", file_.path());
      DropWritten(written, &rest, &first);
    }
    return absl::OkStatus();
  }
  absl::Status Sync() override { return file_.Sync(); }
  absl::Status Close() override { return file_.Close(); }

 private:
  // Removes what was written, and empty pieces, from the front. Returns false
  // if nothing is left.
  static bool DropWritten(size_t written, std::vector<iovec>* pieces,
                          size_t* first) {
    for (; *first < pieces->size(); ++*first) {
      iovec& piece = (*pieces)[*first];
      if (written < piece.iov_len) {
        piece.iov_base = static_cast<char*>(piece.iov_base) + written;
        piece.iov_len -= written;
        return true;
      }
      written -= piece.iov_len;
    }
    return false;
  }

  Descriptor file_;
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(int fd, const std::string& path) : file_(fd, path) {}

  absl::StatusOr<std::string> Read(int64_t offset,
                                   size_t count) const override {
    std::string data(count, '\0');
    COXSWAIN_ASSIGN_OR_RETURN(const size_t filled,
                              ReadInto(offset, count, &data[0]));
    data.resize(filled);
    return data;
  }

  absl::StatusOr<size_t> ReadInto(int64_t offset, size_t count,
                                  char* buffer) const override {
    size_t filled = 0;
    while (filled < count) {
      const ssize_t got = pread(file_.fd(), buffer + filled, count - filled,
                                offset + static_cast<int64_t>(filled));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus("read", file_.path());
      if (got == 0) break;
      filled += got;
    }
    return filled;
  }

  absl::StatusOr<int64_t> Size() const override {
    struct stat info;
    if (fstat(file_.fd(), &info) != 0) return ErrnoStatus("stat", file_.path());
    return info.st_size;
  }

 private:
  Descriptor file_;
};

class PosixFiles : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override {
    const int fd = OpenRetrying(path, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) return ErrnoStatus("create", path);
    return std::make_unique<PosixWritableFile>(fd, path);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(
      const std::string& path) const override {
    const int fd = OpenRetrying(path, O_RDONLY);
    if (fd < 0) return ErrnoStatus("open", path);
    auto file = std::make_unique<PosixReadableFile>(fd, path);
    struct stat info;
    if (fstat(fd, &info) != 0) return ErrnoStatus("stat", path);
    if (S_ISDIR(info.st_mode)) {
      errno = EISDIR;
      return ErrnoStatus("open", path);
    }
    return file;
  }

  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) const override {
    DIR* folder = opendir(path.c_str());
    if (folder == nullptr) return ErrnoStatus("list", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = readdir(folder)) {
      const absl::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const absl::Status status =
        errno == 0 ? absl::OkStatus() : ErrnoStatus("list", path);
    closedir(folder);
    if (!status.ok()) return status;
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::Status MakeFolder(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
    absl::Status status = ErrnoStatus("make folder", path);
    struct stat info;
    if (status.code() == absl::StatusCode::kAlreadyExists &&
        stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
      return absl::OkStatus();
    }
    return status;
  }

  absl::Status SyncFolder(const std::string& path) override {
    const int fd = OpenRetrying(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return ErrnoStatus("open folder", path);
    return Descriptor(fd, path).Sync();
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return ErrnoStatus(absl::StrCat("rename ", from, " to"), to);
  }

  absl::Status RemoveTree(const std::string& path) override {
    struct stat info;
    if (lstat(path.c_str(), &info) != 0) {
      return errno == ENOENT ? absl::OkStatus() : ErrnoStatus("stat", path);
    }
    if (S_ISDIR(info.st_mode)) {
      COXSWAIN_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                                List(path));
      for (const std::string& name : names) {
        COXSWAIN_RETURN_IF_ERROR(RemoveTree(absl::StrCat(path, "/", name)));
      }
    }
    if (remove(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus("remove", path);
  }
};

}  // namespace

FileSystem* PosixFileSystem() {
  static PosixFiles* const files = new PosixFiles;
  return files;
}

}  // namespace coxswain::server
