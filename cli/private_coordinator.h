#ifndef COXSWAIN_CLI_PRIVATE_COORDINATOR_H_
#define COXSWAIN_CLI_PRIVATE_COORDINATOR_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/coordinator.h"

namespace coxswain {

// A coordinator for one launcher: in its process, reachable from this machine
// only, with its state in a temporary folder that goes with it.
class PrivateCoordinator {
 public:
  static absl::StatusOr<std::unique_ptr<PrivateCoordinator>> Start();
  ~PrivateCoordinator();
  PrivateCoordinator(const PrivateCoordinator&) = delete;
  PrivateCoordinator& operator=(const PrivateCoordinator&) = delete;

  std::string address() const;

 private:
  explicit PrivateCoordinator(std::string state_dir)
      : state_dir_(std::move(state_dir)) {}

  const std::string state_dir_;
  std::unique_ptr<server::Coordinator> coordinator_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLI_PRIVATE_COORDINATOR_H_
