#include "tests/bench/worker/file_store.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/cancel_signal.h"
#include "base/clock.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(5);

}  // namespace

std::string FileStore::PathOf(absl::string_view key) const {
  // Keys have slashes in them.
  return absl::StrCat(folder_, "/",
                      absl::StrReplaceAll(key, {{"%", "%25"}, {"/", "%2F"}}));
}

absl::Status FileStore::Set(absl::string_view key, absl::string_view value) {
  const std::string path = PathOf(key);
  // Whoever sees the key sees all of its value.
  const std::string partial = absl::StrCat(path, ".", getpid(), ".partial");
  std::ofstream file(partial, std::ios::binary);
  file << value;
  file.close();
  if (file.good() && std::rename(partial.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      "cannot write ", path, "; --store has to name a folder that exists"));
}

absl::StatusOr<std::string> FileStore::Get(absl::string_view key,
                                           absl::Duration timeout) {
  const std::string path = PathOf(key);
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  const CancelSignal never;
  do {
    std::ifstream file(path, std::ios::binary);
    if (file.is_open()) {
      return std::string(std::istreambuf_iterator<char>(file),
                         std::istreambuf_iterator<char>());
    }
    (void)never.WaitFor(kInterval);
  } while (Clock::Real()->Now() < deadline);
  return absl::DeadlineExceededError(absl::StrCat(
      "nobody wrote ", path, " within ", absl::FormatDuration(timeout)));
}

}  // namespace coxswain::bench
