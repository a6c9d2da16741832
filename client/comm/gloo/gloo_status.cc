#include "client/comm/gloo/gloo_status.h"

#include <csignal>
#include <ctime>

#include <gloo/common/error.h>
#include <gloo/common/logging.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/comm/gloo/transport_control.h"

namespace coxswain {
namespace {

// Gloo puts "[file:line] " before its messages.
absl::string_view WithoutSource(absl::string_view message) {
  const size_t end = message.find("] ");
  if (!absl::StartsWith(message, "[") || end == absl::string_view::npos) {
    return message;
  }
  return message.substr(end + 2);
}

// Gloo writes to sockets without MSG_NOSIGNAL: a peer that died would end this
// process too. Keeps SIGPIPE from this thread, and from threads that gloo
// starts meanwhile, which inherit its mask.
class BrokenPipeGuard {
 public:
  BrokenPipeGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BrokenPipeGuard() {
    // Ours must not be delivered when the mask goes.
    const timespec at_once = {0, 0};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

absl::Status FromMessage(absl::string_view where, absl::string_view message) {
  const std::string text = absl::StrCat(where, ": ", WithoutSource(message));
  return IsTimeout(message) ? absl::DeadlineExceededError(text)
                            : absl::UnavailableError(text);
}

}  // namespace

absl::Status CallGloo(absl::string_view where,
                      const std::function<void()>& function) {
  const BrokenPipeGuard guard;
  try {
    function();
    return absl::OkStatus();
  } catch (const WaitInterrupted&) {
    return absl::AbortedError(absl::StrCat(where, ": interrupted"));
  } catch (const StoreFailure& failure) {
    return absl::Status(failure.status().code(),
                        absl::StrCat(where, ": ", failure.what()));
  } catch (const PeerFailure& failure) {
    if (failure.peer() < 0) return FromMessage(where, failure.what());
    return FromMessage(absl::StrCat(where, ": with rank ", failure.peer()),
                       WithoutSource(failure.what()));
  } catch (const ::gloo::EnforceNotMet& error) {
    return absl::InternalError(absl::StrCat(where, ": ", error.what()));
  } catch (const std::exception& error) {
    return FromMessage(where, error.what());
  }
}

}  // namespace coxswain
