#ifndef COXSWAIN_CLI_LAUNCH_WORKER_ENVIRONMENT_H_
#define COXSWAIN_CLI_LAUNCH_WORKER_ENVIRONMENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/tls_files.h"
#include "client/device/selection.h"

namespace coxswain {

// What the workers of one launcher are told through their environment, where
// a session reads it. No variable of Coxswain's depends on a rank: the
// coordinator gives those. Programs of torch find theirs, WORLD_SIZE and RANK
// where both are known: with a fixed number of workers, all of them here.
struct WorkerEnvironment {
  std::string coordinator;  // HOST:PORT, or several with commas between
  ClientSecurity security;  // what is empty is empty for the workers too
  std::string job;
  std::string node;
  int nproc = 1;           // on this node
  int world_size = 1;      // workers of the job, at most
  int min_world_size = 1;  // as few as it may run with
  int64_t attempt = 0;
  uint64_t launcher_id = 0;
  std::string backend;       // empty: unset
  std::string bind_address;  // empty: unset
  std::string topology;      // keys with commas between; empty: unset
  std::string trace;         // empty: unset
  std::string log_level;     // empty: unset
  std::string log_format;    // empty: unset
  std::string python_path;   // comes first in PYTHONPATH; empty: unset
  std::string plan;  // NAME=VALUE words with spaces between; empty: unset
  std::optional<GpuAssignment> gpus;  // nothing: unset
  // Infinite: unset.
  absl::Duration join_timeout = absl::InfiniteDuration();
  absl::Duration reattach_grace = absl::InfiniteDuration();

  // `inherited` (NAME=VALUE each) with these variables set for one worker.
  // Unset ones are left as inherited. OPENBLAS_NUM_THREADS is 1 unless
  // `inherited` has it, or another variable that OpenBLAS reads for the same.
  std::vector<std::string> For(int slot, uint64_t incarnation,
                               const std::vector<std::string>& inherited) const;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_WORKER_ENVIRONMENT_H_
