#ifndef COXSWAIN_SERVER_STORE_STORE_LIMITS_H_
#define COXSWAIN_SERVER_STORE_STORE_LIMITS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::server {

// What one scope of the store may hold. All of it is under the control of
// peers, so all of it has a bound.
struct StoreLimits {
  size_t max_key_bytes = 1024;
  size_t max_value_bytes = 1 << 20;
  size_t max_keys = 1 << 16;
  size_t max_bytes = 256 << 20;  // keys and values together
  // Keys and values of all generations of all jobs together.
  size_t max_total_bytes = size_t{1} << 30;
  size_t max_waiting_calls = 1 << 14;
  size_t max_watches = 1 << 12;
  size_t max_wait_keys = 1024;  // keys of one Wait
  // Changes that are not committed yet.
  size_t max_changes = 1 << 14;
  size_t max_change_bytes = 64 << 20;
  // Answers kept for repeated requests. A retry comes within seconds, so this
  // needs to cover the requests of a few seconds only.
  size_t max_remembered = 1 << 13;
  size_t max_remembered_bytes = 16 << 20;
  absl::Duration max_timeout = absl::Hours(24);
};

inline absl::Status StoreLimitError(absl::string_view limit, size_t value,
                                    absl::string_view advice) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the store's limit ", limit, " of ", value,
                   " per generation is reached; ", advice));
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORE_STORE_LIMITS_H_
