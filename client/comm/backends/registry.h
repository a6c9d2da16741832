#ifndef COXSWAIN_CLIENT_COMM_BACKENDS_REGISTRY_H_
#define COXSWAIN_CLIENT_COMM_BACKENDS_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/comm/communicator.h"

namespace coxswain {

// Connects through the back end of this name. "auto" finds out through the
// store where the data is (options.device) and which ranks are on one host:
// nccl where all of it is on GPUs; otherwise loopback for a group of one, shm
// on one host, shm within and tcp between hosts of which any has more than one
// rank ("two_level"), tcp otherwise and where a host cannot share memory. Rank
// 0 logs that it is nccl, or why it is not shm, and warns where
// options.encrypts asks for what the back end does not do. Blocks until all
// ranks are there. Fails as BackendName does for a name; data of some ranks on
// GPUs and of others not is FAILED_PRECONDITION; otherwise the errors of the
// back end. Thread-safe.
absl::StatusOr<std::unique_ptr<Communicator>> Connect(
    absl::string_view backend, const CommunicatorOptions& options);

// Returns the one name by which BackendNames lists this back end:
// "two_level(tcp)" is another name of "two_level". Fails with
// INVALID_ARGUMENT for an unknown name and lists the valid ones, or names the
// one that took its place.
absl::StatusOr<std::string> BackendName(absl::string_view name);

// Returns the names that Connect knows, one for each back end.
std::vector<std::string> BackendNames();

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_BACKENDS_REGISTRY_H_
