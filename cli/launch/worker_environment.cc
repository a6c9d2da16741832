#include "cli/launch/worker_environment.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace coxswain {

std::vector<std::string> WorkerEnvironment::For(
    int slot, uint64_t incarnation,
    const std::vector<std::string>& inherited) const {
  std::map<std::string, std::string> own = {
      {"COXSWAIN_COORDINATOR", coordinator},
      {"COXSWAIN_JOB", job},
      {"COXSWAIN_NODE", node},
      {"COXSWAIN_LOCAL_RANK", absl::StrCat(slot)},
      {"COXSWAIN_LOCAL_WORLD_SIZE", absl::StrCat(nproc)},
      {"COXSWAIN_WORLD_SIZE", absl::StrCat(world_size)},
      {"COXSWAIN_MIN_WORLD_SIZE", absl::StrCat(min_world_size)},
      {"COXSWAIN_ATTEMPT", absl::StrCat(attempt)},
      {"COXSWAIN_LAUNCHER_ID", absl::StrCat(launcher_id)},
      {"COXSWAIN_INCARNATION", absl::StrCat(incarnation)},
  };
  if (!backend.empty()) own["COXSWAIN_BACKEND"] = backend;
  if (!bind_address.empty()) own["COXSWAIN_BIND_ADDRESS"] = bind_address;
  if (!topology.empty()) own["COXSWAIN_TOPOLOGY"] = topology;
  if (!trace.empty()) own["COXSWAIN_TRACE"] = trace;
  if (!plan.empty()) own["COXSWAIN_PLAN"] = plan;
  if (join_timeout != absl::InfiniteDuration()) {
    own["COXSWAIN_JOIN_TIMEOUT"] = absl::FormatDuration(join_timeout);
  }

  std::vector<std::string> result;
  for (const std::string& variable : inherited) {
    if (own.count(variable.substr(0, variable.find('='))) == 0) {
      result.push_back(variable);
    }
  }
  for (const auto& [name, value] : own) {
    result.push_back(absl::StrCat(name, "=", value));
  }
  return result;
}

}  // namespace coxswain
