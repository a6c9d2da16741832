#include "tests/support/process_status.h"

#include <fstream>

#include "absl/strings/str_cat.h"

namespace coxswain {

int64_t StatusKib(pid_t process, const std::string& field) {
  std::ifstream status(absl::StrCat("/proc/", process, "/status"));
  std::string word;
  int64_t kib = -1;
  while (status >> word) {
    if (word == field + ":" && status >> kib) return kib;
  }
  return -1;
}

}  // namespace coxswain
