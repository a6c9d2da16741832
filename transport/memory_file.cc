#include "transport/memory_file.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace coxswain {
namespace {

// Of Linux 6.3; older ones fail with EINVAL, and some newer ones without it.
constexpr unsigned int kNoExecSeal = 8;
constexpr mode_t kForUsAlone = 0400;

// Returns a descriptor that open() refuses by its path, with ENXIO. -1 if the
// system has none left.
UniqueFd Nothing() { return UniqueFd(eventfd(0, EFD_CLOEXEC)); }

// Descriptors that had been a MemoryFile's. They are not closed: a late reader
// would find a file of another kind under the same number.
struct Pool {
  Mutex mutex;
  std::vector<int> free ABSL_GUARDED_BY(mutex);
};
Pool& ThePool() {
  static auto* const pool = new Pool;
  return *pool;
}

int TakeDescriptor() {
  Pool& pool = ThePool();
  MutexLock lock(&pool.mutex);
  if (pool.free.empty()) return Nothing().Release();
  const int fd = pool.free.back();
  pool.free.pop_back();
  return fd;
}

absl::Status Failed(absl::string_view what) {
  return absl::ErrnoToStatus(errno, what);
}

UniqueFd NewMemory() {
  constexpr char kName[] = "coxswain";
  UniqueFd memory(memfd_create(kName, MFD_CLOEXEC | kNoExecSeal));
  if (memory.valid() || errno != EINVAL) return memory;
  return UniqueFd(memfd_create(kName, MFD_CLOEXEC));
}

absl::Status WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Failed("cannot write to memory");
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// Sets a modification time that no other file of this class has.
absl::Status Stamp(int fd) {
  static std::atomic<time_t> last{0};
  const timespec time = {++last, 0};
  const timespec times[] = {time, time};
  if (futimens(fd, times) == 0) return absl::OkStatus();
  return Failed("cannot set the time of a file in memory");
}

}  // namespace

MemoryFile::MemoryFile() : fd_(TakeDescriptor()) {}

MemoryFile::~MemoryFile() {
  if (!valid()) return;
  const UniqueFd nothing = Nothing();
  if (!nothing.valid() || dup3(nothing.get(), fd_, O_CLOEXEC) < 0) {
    return;  // Contents stay in memory, and the descriptor is not used again.
  }
  Pool& pool = ThePool();
  MutexLock lock(&pool.mutex);
  pool.free.push_back(fd_);
}

std::string MemoryFile::path() const {
  return absl::StrCat("/proc/self/fd/", fd_);
}

absl::Status MemoryFile::Set(absl::string_view contents) {
  if (!valid()) {
    return absl::ResourceExhaustedError(
        "no descriptor was left for a file in memory: allow this process more "
        "open files (ulimit -n)");
  }
  const UniqueFd memory = NewMemory();
  if (!memory.valid()) return Failed("cannot make a file in memory");
  absl::Status status = WriteAll(memory.get(), contents);
  if (status.ok()) status = Stamp(memory.get());
  if (!status.ok()) return status;
  if (fchmod(memory.get(), kForUsAlone) != 0 ||
      dup3(memory.get(), fd_, O_CLOEXEC) < 0) {
    return Failed("cannot replace a file in memory");
  }
  if (access(path().c_str(), R_OK) != 0) {
    return Failed(absl::StrCat("cannot read ", path(), ": is /proc mounted?"));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
