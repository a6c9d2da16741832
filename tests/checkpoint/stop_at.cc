// Preloaded into a coordinator, stops the process at one chosen call of the
// disk, as a signal that came at that very moment would. STOP_AT names a file;
// while it exists it holds the call, `rename` or `fsync`, a space, and how a
// path of that call ends. The file is removed before the process is stopped.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::string Wanted(const char* file) {
  char text[2 * PATH_MAX];
  const int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const ssize_t size = read(fd, text, sizeof(text));
  close(fd);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}

void StopIfWanted(const std::string& call, const std::string& path) {
  const char* const file = std::getenv("STOP_AT");
  if (file == nullptr) return;
  const std::string wanted = Wanted(file);
  if (wanted.compare(0, call.size() + 1, call + " ") != 0) return;
  const std::string end = wanted.substr(call.size() + 1);
  if (path.size() < end.size() ||
      path.compare(path.size() - end.size(), end.size(), end) != 0) {
    return;
  }
  unlink(file);
  raise(SIGSTOP);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int rename(const char* from, const char* to) noexcept {
  StopIfWanted("rename", from);
  StopIfWanted("rename", to);
  return Next<int(const char*, const char*)>("rename")(from, to);
}

extern "C" int fsync(int fd) {
  char path[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = readlink(link.c_str(), path, sizeof(path));
  if (size > 0) {
    StopIfWanted("fsync", std::string(path, static_cast<size_t>(size)));
  }
  return Next<int(int)>("fsync")(fd);
}
