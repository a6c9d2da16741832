#ifndef COXSWAIN_SERVER_PARAMETER_PARAMETER_LIMITS_H_
#define COXSWAIN_SERVER_PARAMETER_PARAMETER_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace coxswain::server {

// What the parameter store holds for peers. All of it is in memory.
struct ParameterLimits {
  size_t max_name_bytes = 1024;
  // Of one tensor, as it is formed from its parts.
  int64_t max_tensor_bytes = int64_t{1} << 30;
  // Of one job, in all of its generations: what was sent and not summed up yet,
  // and what has not been sent back yet to all ranks that asked for it.
  int64_t max_job_bytes = int64_t{4} << 30;
  int64_t max_total_bytes = int64_t{8} << 30;  // of all jobs together
  // Of one job: memory for what was declared (groups and their ranks,
  // operations, tensors) beside the tensors' bytes. It counts as bytes of the
  // job as well.
  int64_t max_declared_bytes = int64_t{256} << 20;
  // Ranks of one group, each of which may have a part of a tensor. A job has no
  // more members.
  int max_parts = 1 << 14;
  size_t max_tensors = 1 << 16;     // of one group at once
  size_t max_groups = 1 << 12;      // of one generation at once
  size_t max_operations = 1 << 12;  // of one stream at once
  // What waits to be sent on one stream, without the tensors' bytes: a reader
  // that falls further behind loses its stream.
  int64_t max_outbox_bytes = int64_t{16} << 20;
  // How long one message of an Exchange stream may wait for its reader, and for
  // how long it is waited for once the stream has ended. Then the stream is
  // cancelled, and its rank has left.
  absl::Duration max_write_time = absl::Minutes(1);
  absl::Duration end_grace = absl::Seconds(5);
  absl::Duration max_timeout = absl::Hours(24);  // of one operation
};

inline absl::Status ParameterLimitError(absl::string_view limit, int64_t value,
                                        absl::string_view advice) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the parameter service's limit ", limit, " of ", value,
                   " is reached; ", advice));
}

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_PARAMETER_PARAMETER_LIMITS_H_
