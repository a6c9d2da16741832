#ifndef COXSWAIN_CLIENT_COMM_GLOO_GLOO_STATUS_H_
#define COXSWAIN_CLIENT_COMM_GLOO_GLOO_STATUS_H_

#include <functional>
#include <stdexcept>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Carries an error of the rendezvous store through gloo, which knows only
// exceptions.
class StoreFailure : public std::runtime_error {
 public:
  explicit StoreFailure(absl::Status status)
      : std::runtime_error(std::string(status.message())),
        status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

// The only place where gloo's errors are translated: runs `function`, which
// calls gloo, and turns what it throws into a status whose message begins with
// `where`.
//   ABORTED            its transport was interrupted
//   DEADLINE_EXCEEDED  a peer did not answer in time
//   UNAVAILABLE        a connection failed or broke
//   INTERNAL           gloo found a mistake of ours
// A StoreFailure becomes its own status. A broken pipe raises no signal.
absl::Status CallGloo(absl::string_view where,
                      const std::function<void()>& function);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_GLOO_GLOO_STATUS_H_
