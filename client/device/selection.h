#ifndef COXSWAIN_CLIENT_DEVICE_SELECTION_H_
#define COXSWAIN_CLIENT_DEVICE_SELECTION_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// Which GPUs the workers of one launcher use. Nothing here links or calls CUDA:
// the launcher would otherwise hold a driver context's memory and threads,
// without any use, for as long as the job runs. Pure but for CountHostGpus;
// thread-safe.

// What `coxswain run --gpus` asks for.
struct GpuRequest {
  int count = 0;  // one per local rank; 0: none, the workers use the CPU
  // These, in the order of local ranks; empty: the first `count`. Numbers count
  // what CUDA_VISIBLE_DEVICES shows the launcher, or the GPUs of the host where
  // that is not set; or else all are UUIDs, GPU-... or MIG-...
  std::vector<std::string> listed;
};

// Parses "4" (so many), "2,0" and "2," (these), or "none" (the CPU). Fails with
// INVALID_ARGUMENT, naming the text, or the GPU that two ranks would share.
absl::StatusOr<GpuRequest> ParseGpuRequest(absl::string_view text);

// The GPUs that this host's driver lets a process open.
struct HostGpus {
  std::optional<int> count;  // nullopt: unknown without CUDA
  std::string why_none;      // of 0
};

// Counts them by the driver's files below `root`; under WSL there are none to
// count.
HostGpus CountHostGpus(const std::string& root = "/");

// The GPU of each worker. All workers of a launcher see the same GPUs, in the
// order of local ranks, and each is given its own: NCCL asks CUDA whether two
// GPUs reach each other's memory only if its process sees both, and guesses
// otherwise.
struct GpuAssignment {
  std::vector<std::string> visible;  // for CUDA_VISIBLE_DEVICES
  // By local rank: its place in `visible`; empty: the CPU.
  std::vector<int> devices;
};

// Returns the assignment. `visible` is the launcher's CUDA_VISIBLE_DEVICES, if
// set. Fails with INVALID_ARGUMENT if there are not as many GPUs as local
// ranks, on the host or in the request, or it names one that does not exist.
absl::StatusOr<GpuAssignment> AssignGpus(
    const GpuRequest& request, const HostGpus& host,
    const std::optional<std::string>& visible, int local_ranks);

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_DEVICE_SELECTION_H_
