#include "cli/private_coordinator.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr char kHost[] = "127.0.0.1";
constexpr absl::Duration kShutdown = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<PrivateCoordinator>>
PrivateCoordinator::Start() {
  std::error_code error;
  const auto parent = std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("no folder for temporary files: ", error.message()));
  }
  std::string folder = (parent / "coxswain-standalone-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot make the folder ", folder));
  }
  std::unique_ptr<PrivateCoordinator> result(new PrivateCoordinator(folder));
  server::CoordinatorOptions options;
  options.listen = absl::StrCat(kHost, ":0");
  options.state_dir = folder;
  COXSWAIN_ASSIGN_OR_RETURN(result->coordinator_,
                            server::Coordinator::Start(options));
  return result;
}

PrivateCoordinator::~PrivateCoordinator() {
  if (coordinator_ != nullptr) coordinator_->Shutdown(kShutdown);
  coordinator_.reset();
  std::error_code ignored;  // it lies in the folder for temporary files
  std::filesystem::remove_all(state_dir_, ignored);
}

std::string PrivateCoordinator::address() const {
  return absl::StrCat(kHost, ":", coordinator_->port());
}

}  // namespace coxswain
