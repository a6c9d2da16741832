#include "client/comm/backends/registry.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cancel_signal.h"
#include "base/logging.h"
#include "base/nearest_word.h"
#include "base/status_macros.h"
#include "client/comm/back_end.h"
#include "client/comm/hosts.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "client/comm/nccl/nccl_communicator.h"
#include "client/comm/parameter_server/parameter_communicator.h"
#include "client/comm/shm/shm_communicator.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/two_level/two_level_communicator.h"

namespace coxswain {
namespace {

using Factory = absl::StatusOr<std::unique_ptr<Communicator>> (*)(
    const CommunicatorOptions&);

// How long ranks of a host wait for each other before they do without shared
// memory.
constexpr absl::Duration kLocalTimeout = absl::Seconds(20);

// Another communicator of this rank, among these ranks of the group.
CommunicatorOptions Among(const std::vector<int>& ranks, absl::string_view name,
                          CommunicatorOptions options) {
  const auto self = std::find(ranks.begin(), ranks.end(), options.rank);
  options.rank = static_cast<int>(self - ranks.begin());
  options.size = static_cast<int>(ranks.size());
  options.id = absl::StrCat(options.id, "/", name);
  options.measures_links = false;  // those of several places are the same
  return options;
}

// The memory that the ranks of this host share, if all hosts have it.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectHost(
    const CommunicatorOptions& options, const Hosts& hosts) {
  const int host = hosts.host_of(options.rank);
  CommunicatorOptions local_options =
      Among(hosts.ranks(host), absl::StrCat("host-", host), options);
  // All ranks have just answered, so one that does not come cannot.
  local_options.connect_timeout = kLocalTimeout;
  auto local = local_options.size == 1 ? ConnectLoopback(local_options)
                                       : ConnectShm(local_options);
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::string obstacle,
      AgreeThatAll(options, "shared-memory", local.status()));
  if (!obstacle.empty()) return absl::UnavailableError(obstacle);
  return local;
}

absl::StatusOr<std::unique_ptr<Communicator>> ConnectLevels(
    const CommunicatorOptions& options, const Hosts& hosts,
    std::unique_ptr<Communicator> local) {
  TwoLevelParts parts = {std::move(local), nullptr, {}, hosts};
  COXSWAIN_ASSIGN_OR_RETURN(parts.flat, ConnectTcp(options));
  std::optional<SplitLink> cancelled;
  if (options.cancel != nullptr) {
    // The caller owns it.
    cancelled.emplace(
        std::shared_ptr<CancelSignal>(options.cancel, [](auto*) {}),
        [flat = parts.flat.get()](absl::string_view why) { flat->Abort(why); });
  }
  const absl::Status split = SplitBridges(&parts);
  cancelled.reset();
  if (options.cancel != nullptr) {
    COXSWAIN_RETURN_IF_ERROR(options.cancel->status());
  }
  COXSWAIN_RETURN_IF_ERROR(split);
  return MakeTwoLevel(std::move(parts), options.timeout);
}

// Two levels wherever the ranks are.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectTwoLevel(
    const CommunicatorOptions& options) {
  COXSWAIN_RETURN_IF_ERROR(CheckGroupOptions(options, "two_level"));
  COXSWAIN_ASSIGN_OR_RETURN(const Hosts hosts,
                            FindHosts(options, HostIdentity()));
  COXSWAIN_ASSIGN_OR_RETURN(auto local, ConnectHost(options, hosts));
  return ConnectLevels(options, hosts, std::move(local));
}

void SayOnce(const CommunicatorOptions& options, absl::string_view why) {
  if (options.rank != 0) return;
  LogInfo("communicator_without_shared_memory",
          {{"communicator", options.id}, {"reason", why}});
}

std::string PlaceOf(const Device& device) {
  return device.kind == Device::Kind::kCpu
             ? "its data is in memory of the CPU"
             : absl::StrCat("its data is on GPU ", device.index);
}

// Returns whether the data of all ranks is on GPUs; an error where that of some
// is, because no back end moves both.
absl::StatusOr<bool> AllOnGpus(const CommunicatorOptions& options) {
  const bool own = options.device.kind == Device::Kind::kCuda;
  if (options.size == 1 || options.store == nullptr) return own;
  const absl::Status place =
      absl::FailedPreconditionError(PlaceOf(options.device));
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::string on_gpu,
      AgreeThatAll(options, "cpu", own ? place : absl::OkStatus()));
  if (on_gpu.empty()) return false;
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::string on_cpu,
      AgreeThatAll(options, "gpu", own ? absl::OkStatus() : place));
  if (on_cpu.empty()) return true;
  return absl::FailedPreconditionError(
      absl::StrCat("communicator '", options.id, "': ", on_gpu, ", and ",
                   on_cpu, "; give all ranks a GPU, or none"));
}

// By where the data is, and then by where the ranks are.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectAuto(
    const CommunicatorOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const bool gpus, AllOnGpus(options));
  if (gpus) {
    if (options.rank == 0) {
      LogInfo("communicator_by_nccl",
              {{"communicator", options.id},
               {"ranks", options.size},
               {"reason", "the data of all ranks is on GPUs"}});
    }
    return ConnectNccl(options);
  }
  if (options.size == 1) return ConnectLoopback(options);
  if (options.store == nullptr) return ConnectTcp(options);  // which refuses
  COXSWAIN_ASSIGN_OR_RETURN(const Hosts hosts,
                            FindHosts(options, HostIdentity()));
  if (hosts.count() == options.size) return ConnectTcp(options);
  auto local = ConnectHost(options, hosts);
  if (!local.ok()) {
    if (!absl::IsUnavailable(local.status())) return local.status();
    SayOnce(options, absl::StrCat("ranks of one host cannot share memory: ",
                                  local.status().message()));
    return ConnectTcp(options);
  }
  if (hosts.count() == 1) return local;
  return ConnectLevels(options, hosts, *std::move(local));
}

// A user who speaks TLS with the coordinator may take all for encrypted.
void WarnOfPlainText(const CommunicatorOptions& options,
                     absl::string_view backend) {
  if (!options.encrypts || options.rank != 0 || options.size < 2) return;
  if (backend != "nccl") return;
  LogWarningOnce(
      "plain text by nccl", "gradients_in_plain_text",
      {{"communicator", options.id},
       {"back_end", backend},
       {"next",
        "the coordinator is spoken to with TLS, but this back end does not "
        "encrypt: keep strangers off the network between workers"}});
}

struct Backend {
  const char* name;
  Factory connect;
};
constexpr Backend kBackends[] = {
    {"auto", ConnectAuto},
    {"loopback", ConnectLoopback},
    {"nccl", ConnectNccl},
    {"parameter_server", ConnectParameterServer},
    {"shm", ConnectShm},
    {"tcp", ConnectTcp},
    {"two_level", ConnectTwoLevel},
};

const Backend* Find(absl::string_view name) {
  if (name == "two_level(tcp)") name = "two_level";
  const auto* const found =
      std::find_if(std::begin(kBackends), std::end(kBackends),
                   [&](const Backend& one) { return name == one.name; });
  return found == std::end(kBackends) ? nullptr : found;
}

absl::Status Unknown(absl::string_view name) {
  if (name == "gloo") {
    return absl::InvalidArgumentError(
        "the back end 'gloo' was replaced by 'tcp': give that, or 'auto', "
        "which "
        "takes it between hosts");
  }
  const std::vector<std::string> names = BackendNames();
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no communication back end '", name, "'; choose one of: ",
      absl::StrJoin(names, ", "), DidYouMean(name, names)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Connect(
    absl::string_view backend, const CommunicatorOptions& options) {
  const Backend* const found = Find(backend);
  if (found == nullptr) return Unknown(backend);
  auto connected = found->connect(options);
  if (connected.ok()) WarnOfPlainText(options, (*connected)->backend());
  return connected;
}

absl::StatusOr<std::string> BackendName(absl::string_view name) {
  const Backend* const found = Find(name);
  if (found == nullptr) return Unknown(name);
  return found->name;
}

std::vector<std::string> BackendNames() {
  std::vector<std::string> names;
  for (const Backend& backend : kBackends) names.push_back(backend.name);
  return names;
}

}  // namespace coxswain
