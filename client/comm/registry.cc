#include "client/comm/registry.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/comm/gloo/gloo_communicator.h"
#include "client/comm/loopback/loopback_communicator.h"

namespace coxswain {
namespace {

using Factory = absl::StatusOr<std::unique_ptr<Communicator>> (*)(
    const CommunicatorOptions&);

absl::StatusOr<std::unique_ptr<Communicator>> ConnectAuto(
    const CommunicatorOptions& options) {
  return options.size == 1 ? ConnectLoopback(options) : ConnectGloo(options);
}

struct Backend {
  const char* name;
  Factory connect;
};
constexpr Backend kBackends[] = {
    {"auto", ConnectAuto},
    {"gloo", ConnectGloo},
    {"loopback", ConnectLoopback},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Connect(
    absl::string_view backend, const CommunicatorOptions& options) {
  for (const Backend& candidate : kBackends) {
    if (backend == candidate.name) return candidate.connect(options);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no communication back end '", backend,
                   "'; choose one of: ", absl::StrJoin(BackendNames(), ", ")));
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const Backend& backend : kBackends) names.push_back(backend.name);
  return names;
}

}  // namespace coxswain
