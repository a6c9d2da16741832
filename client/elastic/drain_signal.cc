#include "client/elastic/drain_signal.h"

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

std::atomic<bool> signalled{false};
static_assert(std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch nothing else");

void Note(int) { signalled.store(true); }

}  // namespace

absl::Status DrainOnSignal(int signal_number) {
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_handler = Note;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  if (sigaction(signal_number, &action, nullptr) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "signal ", signal_number, " cannot be caught: ", std::strerror(errno)));
}

bool DrainSignalled() { return signalled.load(); }

}  // namespace coxswain
