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

// The variables that a launcher sets for its workers, and that a session reads.
// No variable of Coxswain's depends on a rank: the coordinator assigns ranks.
// Torch's variables are set as well: WORLD_SIZE if the number of workers is
// fixed, and RANK if also all of them are on this node.
struct WorkerEnvironment {
  std::string coordinator;  // HOST:PORT, or several with commas between
  ClientSecurity security;  // an empty field is empty for the workers, too
  std::string job;
  std::string node;
  int nproc = 1;           // on this node
  int world_size = 1;      // workers of the job, at most
  int min_world_size = 1;  // as few as it may run with
  int64_t attempt = 0;
  uint64_t launcher_id = 0;
  std::string backend;       // empty: unset
  bool plain_data = false;   // false: unset
  std::string bind_address;  // empty: unset
  std::string topology;      // keys with commas between; empty: unset
  std::string mesh;          // empty: unset
  std::string trace;         // empty: unset
  std::string log_level;     // empty: unset
  std::string log_format;    // empty: unset
  std::string python_path;   // comes first in PYTHONPATH; empty: unset
  std::string plan;  // NAME=VALUE words with spaces between; empty: unset
  std::optional<GpuAssignment> gpus;  // nothing: unset
  // Infinite: unset.
  absl::Duration join_timeout = absl::InfiniteDuration();
  absl::Duration reattach_grace = absl::InfiniteDuration();

  // Returns `inherited` (NAME=VALUE each) with these variables set for one
  // worker. Unset ones stay as inherited. OPENBLAS_NUM_THREADS is 1 unless
  // `inherited` has it, or another variable that OpenBLAS reads for the same.
  std::vector<std::string> For(int slot, uint64_t incarnation,
                               const std::vector<std::string>& inherited) const;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_LAUNCH_WORKER_ENVIRONMENT_H_
