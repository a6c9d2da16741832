#ifndef COXSWAIN_SERVER_PARAMETER_PARAMETER_LIMITS_H_
#define COXSWAIN_SERVER_PARAMETER_PARAMETER_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::server {

// What the parameter room holds for peers. All of it is in memory.
struct ParameterLimits {
  size_t max_name_bytes = 1024;
  // Of one tensor, as it is pulled.
  int64_t max_tensor_bytes = int64_t{1} << 30;
  // Of one job: what was pushed and not summed up yet, and what was not pulled
  // yet by all who will.
  int64_t max_job_bytes = int64_t{4} << 30;
  int64_t max_total_bytes = int64_t{8} << 30;  // of all jobs together
  // Of one tensor, and ranks of one group: what the room holds for each is not
  // counted in the bytes above. A job has no more members.
  int max_parts = 1 << 14;
  size_t max_parameters = 1 << 16;  // names of one job
  size_t max_tensors = 1 << 16;     // of one group at once
  size_t max_groups = 1 << 12;      // of one job
  size_t max_operations = 1 << 12;  // of one stream at once
  // What waits to be sent on one stream, without the tensors' bytes: a reader
  // that stands still loses its stream.
  int64_t max_outbox_bytes = int64_t{16} << 20;
  size_t max_waiting_pulls = 1 << 14;  // of one job
  absl::Duration max_timeout = absl::Hours(24);
  // How long the parameters of a generation are kept for the next one.
  absl::Duration keep_after_end = absl::Minutes(10);
};

inline absl::Status ParameterLimitError(absl::string_view limit, int64_t value,
                                        absl::string_view advice) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the parameter service's limit ", limit, " of ", value,
                   " is reached; ", advice));
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_PARAMETER_LIMITS_H_
