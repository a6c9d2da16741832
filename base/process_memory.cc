#include "base/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace coxswain {
namespace {

// A file that is missing, or contains "max", limits nothing.
int64_t Least(int64_t memory, const std::string& file) {
  std::ifstream in(file);
  std::string word;
  int64_t limit = 0;
  if (!(in >> word) || !absl::SimpleAtoi(word, &limit) || limit <= 0) {
    return memory;
  }
  return std::min(memory, limit);
}

}  // namespace

int64_t ProcessMemory(int64_t machine, const std::string& root,
                      absl::string_view groups) {
  int64_t memory = Least(machine, root + "/memory/memory.limit_in_bytes");
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    if (!absl::ConsumePrefix(&line, "0::")) continue;
    while (true) {
      memory = Least(memory, absl::StrCat(root, line, "/memory.max"));
      const size_t slash = line.rfind('/');
      if (slash == absl::string_view::npos) break;
      line = line.substr(0, slash);
    }
  }
  return memory;
}

int64_t ProcessMemory() {
  std::ifstream in("/proc/self/cgroup");
  const std::string groups{std::istreambuf_iterator<char>(in), {}};
  return ProcessMemory(
      int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)},
      "/sys/fs/cgroup", groups);
}

}  // namespace coxswain
