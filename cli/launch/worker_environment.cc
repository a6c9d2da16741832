#include "cli/launch/worker_environment.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace coxswain {
namespace {

constexpr char kDeviceOrder[] = "CUDA_DEVICE_ORDER";

bool Has(const std::vector<std::string>& variables, absl::string_view name) {
  return std::any_of(
      variables.begin(), variables.end(), [&](const std::string& variable) {
        return absl::StartsWith(variable, absl::StrCat(name, "="));
      });
}

// Numbers GPUs as nvidia-smi does, unless the user has chosen an order: CUDA's
// own default puts the fastest first.
void AddGpus(const GpuAssignment& gpus, int slot,
             const std::vector<std::string>& inherited,
             std::map<std::string, std::string>* own) {
  if (gpus.devices.empty()) {
    (*own)["CUDA_VISIBLE_DEVICES"] = "-1";
    (*own)["COXSWAIN_LOCAL_DEVICE"] = "cpu";
    return;
  }
  (*own)["CUDA_VISIBLE_DEVICES"] = absl::StrJoin(gpus.visible, ",");
  (*own)["COXSWAIN_LOCAL_DEVICE"] = absl::StrCat(gpus.devices.at(slot));
  if (!Has(inherited, kDeviceOrder)) (*own)[kDeviceOrder] = "PCI_BUS_ID";
}

// OpenBLAS, which Debian's libtorch computes with, starts a thread for each
// core in each process, so that the ranks of a host slow each other down. It
// follows the first of these that is set.
void AddBlasThreads(const std::vector<std::string>& inherited,
                    std::map<std::string, std::string>* own) {
  for (const char* const name :
       {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"}) {
    if (Has(inherited, name)) return;
  }
  (*own)["OPENBLAS_NUM_THREADS"] = "1";
}

void AddTorch(const WorkerEnvironment& environment, int slot,
              std::map<std::string, std::string>* own) {
  const int world_size = environment.world_size;
  (*own)["LOCAL_RANK"] = absl::StrCat(slot);
  (*own)["LOCAL_WORLD_SIZE"] = absl::StrCat(environment.nproc);
  if (environment.min_world_size != world_size) return;
  (*own)["WORLD_SIZE"] = absl::StrCat(world_size);
  // Ranks go by node, then by slot.
  if (environment.nproc == world_size) (*own)["RANK"] = absl::StrCat(slot);
}

std::string PythonPath(const std::string& first,
                       const std::vector<std::string>& inherited) {
  constexpr absl::string_view kPrefix = "PYTHONPATH=";
  for (const std::string& variable : inherited) {
    absl::string_view rest = variable;
    if (absl::ConsumePrefix(&rest, kPrefix) && !rest.empty()) {
      return absl::StrCat(first, ":", rest);
    }
  }
  return first;
}

// Overrides inherited variables, which the launcher's options were made from.
void AddSecurity(const ClientSecurity& security,
                 const std::vector<std::string>& inherited,
                 std::map<std::string, std::string>* own) {
  const std::map<std::string, std::string> variables = {
      {"COXSWAIN_TLS_CA", security.tls.ca},
      {"COXSWAIN_TLS_CERT", security.tls.cert},
      {"COXSWAIN_TLS_KEY", security.tls.key},
      {"COXSWAIN_TOKEN_FILE", security.token_file},
      {"COXSWAIN_INSECURE", security.insecure ? "true" : ""}};
  for (const auto& [name, value] : variables) {
    if (!value.empty() || Has(inherited, name)) (*own)[name] = value;
  }
}

}  // namespace

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
  if (plain_data) own["COXSWAIN_PLAIN_DATA"] = "true";
  if (!bind_address.empty()) own["COXSWAIN_BIND_ADDRESS"] = bind_address;
  if (!topology.empty()) own["COXSWAIN_TOPOLOGY"] = topology;
  if (!mesh.empty()) own["COXSWAIN_MESH"] = mesh;
  if (!trace.empty()) own["COXSWAIN_TRACE"] = trace;
  if (!plan.empty()) own["COXSWAIN_PLAN"] = plan;
  if (!python_path.empty()) {
    own["PYTHONPATH"] = PythonPath(python_path, inherited);
  }
  AddTorch(*this, slot, &own);
  if (!log_level.empty()) own["COXSWAIN_LOG_LEVEL"] = log_level;
  if (!log_format.empty()) own["COXSWAIN_LOG_FORMAT"] = log_format;
  AddBlasThreads(inherited, &own);
  AddSecurity(security, inherited, &own);
  if (gpus.has_value()) AddGpus(*gpus, slot, inherited, &own);
  if (join_timeout != absl::InfiniteDuration()) {
    own["COXSWAIN_JOIN_TIMEOUT"] = absl::FormatDuration(join_timeout);
  }
  if (reattach_grace != absl::InfiniteDuration()) {
    own["COXSWAIN_REATTACH_GRACE"] = absl::FormatDuration(reattach_grace);
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
