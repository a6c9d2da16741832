#include "client/session/session_options.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/mesh.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "client/comm/backends/registry.h"
#include "client/session/job.h"

namespace coxswain {
namespace {

using GetVariable = std::function<const char*(const char* name)>;

absl::Status Invalid(const char* name, absl::string_view value,
                     absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, "='", value, "' is not ", expected));
}

std::string Text(const GetVariable& get, const char* name) {
  const char* value = get(name);
  return value == nullptr ? "" : value;
}

absl::Status Required(const char* name, const std::string& value,
                      absl::string_view what) {
  if (!value.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is not set: it names ", what,
                   ". Start the program with `coxswain run`, or set it"));
}

template <typename Integer>
absl::Status ReadInt(const GetVariable& get, const char* name, int least,
                     Integer* result) {
  const std::string value = Text(get, name);
  if (value.empty()) return absl::OkStatus();
  Integer number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < least) {
    return Invalid(name, value,
                   absl::StrCat("a whole number of at least ", least));
  }
  *result = number;
  return absl::OkStatus();
}

absl::Status ReadBool(const GetVariable& get, const char* name, bool* result) {
  const std::string value = Text(get, name);
  if (value.empty() || absl::SimpleAtob(value, result)) return absl::OkStatus();
  return Invalid(name, value, "true or false");
}

absl::Status ReadId(const GetVariable& get, const char* name,
                    uint64_t* result) {
  const std::string value = Text(get, name);
  if (value.empty()) return absl::OkStatus();
  absl::string_view digits = value;
  const bool hexadecimal = absl::ConsumePrefix(&digits, "0x");
  uint64_t number = 0;
  const bool parsed = hexadecimal ? absl::SimpleHexAtoi(digits, &number)
                                  : absl::SimpleAtoi(digits, &number);
  if (!parsed || number == 0) {
    return Invalid(name, value,
                   "a number from 1 to 2^64 - 1, decimal or as 0x...");
  }
  *result = number;
  return absl::OkStatus();
}

absl::Status ReadDuration(const GetVariable& get, const char* name,
                          absl::Duration* result) {
  const std::string value = Text(get, name);
  if (value.empty()) return absl::OkStatus();
  absl::Duration duration;
  int64_t seconds = 0;
  if (absl::SimpleAtoi(value, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(value, &duration)) {
    duration = absl::ZeroDuration();
  }
  if (duration <= absl::ZeroDuration() || duration > absl::Hours(24 * 365)) {
    return Invalid(name, value, "a time above 0, such as 90s or 5m");
  }
  *result = duration;
  return absl::OkStatus();
}

absl::Status ReadPlan(const GetVariable& get, const char* name,
                      PlanOverrides* result) {
  const std::string value = Text(get, name);
  absl::StatusOr<PlanOverrides> overrides = ParsePlanOverrides(value);
  if (!overrides.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "='", value, "': ", overrides.status().message()));
  }
  *result = *std::move(overrides);
  return absl::OkStatus();
}

absl::Status ReadMesh(const GetVariable& get, const char* name,
                      std::string* result) {
  const std::string value = Text(get, name);
  if (value.empty()) return absl::OkStatus();
  const absl::StatusOr<Mesh> mesh = Mesh::Parse(value);
  if (!mesh.ok()) {
    return WithPrefix(absl::StrCat(name, ": "), mesh.status());
  }
  *result = mesh->ToString();
  return absl::OkStatus();
}

absl::Status ReadTopology(const GetVariable& get, const char* name,
                          std::vector<std::string>* result) {
  const std::string value = Text(get, name);
  if (value.empty()) return absl::OkStatus();
  const std::vector<std::string> levels = absl::StrSplit(value, ',');
  if (std::find(levels.begin(), levels.end(), "") != levels.end()) {
    return Invalid(name, value,
                   "the places of this worker from the widest to the closest, "
                   "with commas between, such as rack-3,node-12");
  }
  *result = levels;
  return absl::OkStatus();
}

absl::Status ReadDevice(const GetVariable& get, const char* name,
                        Device* result) {
  const std::string value = Text(get, name);
  if (value.empty()) return absl::OkStatus();
  Device device;
  if (value != "cpu") {
    device.kind = Device::Kind::kCuda;
    if (!absl::SimpleAtoi(value, &device.index) || device.index < 0) {
      return Invalid(name, value,
                     "cpu or the number of a GPU among those that CUDA shows "
                     "this process, from 0");
    }
  }
  *result = device;
  return absl::OkStatus();
}

// Reads the files now, so that an invalid one is an error that names it: gRPC
// would only fail to connect.
absl::Status ReadSecurity(const GetVariable& get,
                          const std::string& coordinator,
                          ClientSecurity* result) {
  ClientSecurity security;
  security.tls.ca = Text(get, "COXSWAIN_TLS_CA");
  security.tls.cert = Text(get, "COXSWAIN_TLS_CERT");
  security.tls.key = Text(get, "COXSWAIN_TLS_KEY");
  security.token_file = Text(get, "COXSWAIN_TOKEN_FILE");
  COXSWAIN_RETURN_IF_ERROR(
      ReadBool(get, "COXSWAIN_INSECURE", &security.insecure));
  COXSWAIN_RETURN_IF_ERROR(
      CheckClientSecurity(security, coordinator, Clock::Real()->WallTime()));
  *result = std::move(security);
  return absl::OkStatus();
}

// How many workers the job has, and as few as it may have.
absl::Status ReadWorldSizes(const GetVariable& get, SessionOptions* options) {
  COXSWAIN_RETURN_IF_ERROR(
      ReadInt(get, "COXSWAIN_WORLD_SIZE", 1, &options->world_size));
  COXSWAIN_RETURN_IF_ERROR(
      ReadInt(get, "COXSWAIN_MIN_WORLD_SIZE", 1, &options->min_world_size));
  if (options->world_size > 0 &&
      options->min_world_size > options->world_size) {
    return Invalid(
        "COXSWAIN_MIN_WORLD_SIZE", absl::StrCat(options->min_world_size),
        absl::StrCat("at most COXSWAIN_WORLD_SIZE=", options->world_size));
  }
  return absl::OkStatus();
}

// Splits "HOST:PORT" or "[v6]:PORT"; false if it is neither.
bool SplitHostPort(absl::string_view host_port, std::string* host,
                   std::string* port) {
  const size_t colon = host_port.rfind(':');
  if (colon == absl::string_view::npos) return false;
  absl::string_view name = host_port.substr(0, colon);
  const absl::string_view digits = host_port.substr(colon + 1);
  if (absl::ConsumePrefix(&name, "[") != absl::ConsumeSuffix(&name, "]")) {
    return false;
  }
  int number = 0;
  if (name.empty() || !absl::SimpleAtoi(digits, &number) || number < 1 ||
      number > std::numeric_limits<uint16_t>::max()) {
    return false;
  }
  *host = std::string(name);
  *port = std::string(digits);
  return true;
}

// Those of a list with commas.
std::vector<std::string> Coordinators(absl::string_view list) {
  return absl::StrSplit(list, ',');
}

// Returns the local address of a datagram socket connected to `remote`: no
// packet is sent, but the kernel chooses the route.
absl::StatusOr<std::string> LocalAddressOfRoute(const addrinfo& remote) {
  const int fd = socket(remote.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("socket: ", strerror(errno)));
  }
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  char text[NI_MAXHOST];
  const bool found =
      connect(fd, remote.ai_addr, remote.ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text, sizeof(text),
                  nullptr, 0, NI_NUMERICHOST) == 0;
  const int error = errno;
  close(fd);
  if (found) return std::string(text);
  return absl::UnavailableError(absl::StrCat("no route: ", strerror(error)));
}

absl::StatusOr<std::string> AddressTowardsOne(absl::string_view host_port) {
  std::string host, port;
  if (!SplitHostPort(host_port, &host, &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", host_port, "' is not HOST:PORT"));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot resolve the host '", host, "': ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> remotes(
      found, &freeaddrinfo);
  absl::Status last;
  for (const addrinfo* remote = found; remote != nullptr;
       remote = remote->ai_next) {
    auto address = LocalAddressOfRoute(*remote);
    if (address.ok()) return address;
    last = address.status();
  }
  return absl::UnavailableError(absl::StrCat("no local address leads to ",
                                             host_port, ": ", last.message()));
}

}  // namespace

absl::StatusOr<SessionOptions> SessionOptions::FromEnvironment() {
  return FromVariables([](const char* name) { return std::getenv(name); });
}

absl::StatusOr<SessionOptions> SessionOptions::FromVariables(
    const GetVariable& get) {
  SessionOptions options;
  options.coordinator = Text(get, "COXSWAIN_COORDINATOR");
  COXSWAIN_RETURN_IF_ERROR(Required("COXSWAIN_COORDINATOR", options.coordinator,
                                    "the coordinator's HOST:PORT"));
  for (const std::string& one : Coordinators(options.coordinator)) {
    std::string host, port;
    if (SplitHostPort(one, &host, &port)) continue;
    return Invalid("COXSWAIN_COORDINATOR", options.coordinator,
                   "HOST:PORT with a port from 1 to 65535, or several of them "
                   "with commas between");
  }
  COXSWAIN_RETURN_IF_ERROR(
      ReadSecurity(get, options.coordinator, &options.security));
  options.job = Text(get, "COXSWAIN_JOB");
  COXSWAIN_RETURN_IF_ERROR(Required("COXSWAIN_JOB", options.job, "the job"));
  options.identity.node = Text(get, "COXSWAIN_NODE");
  COXSWAIN_RETURN_IF_ERROR(
      ReadInt(get, "COXSWAIN_LOCAL_RANK", 0, &options.local_rank));
  options.identity.slot = options.local_rank;
  COXSWAIN_RETURN_IF_ERROR(
      ReadInt(get, "COXSWAIN_LOCAL_WORLD_SIZE", 1, &options.local_world_size));
  if (options.local_rank >= options.local_world_size &&
      !Text(get, "COXSWAIN_LOCAL_WORLD_SIZE").empty()) {
    return Invalid("COXSWAIN_LOCAL_RANK", absl::StrCat(options.local_rank),
                   absl::StrCat("below COXSWAIN_LOCAL_WORLD_SIZE=",
                                options.local_world_size));
  }
  COXSWAIN_RETURN_IF_ERROR(ReadWorldSizes(get, &options));
  COXSWAIN_RETURN_IF_ERROR(ReadMesh(get, "COXSWAIN_MESH", &options.mesh));
  COXSWAIN_RETURN_IF_ERROR(
      ReadDevice(get, "COXSWAIN_LOCAL_DEVICE", &options.device));
  options.ras_address = Text(get, "NCCL_RAS_ADDR");
  COXSWAIN_RETURN_IF_ERROR(
      ReadInt(get, "COXSWAIN_ATTEMPT", 0, &options.attempt));
  COXSWAIN_RETURN_IF_ERROR(
      ReadTopology(get, "COXSWAIN_TOPOLOGY", &options.topology));
  COXSWAIN_RETURN_IF_ERROR(
      ReadId(get, "COXSWAIN_LAUNCHER_ID", &options.launcher_id));
  uint64_t incarnation = 0;
  COXSWAIN_RETURN_IF_ERROR(ReadId(get, "COXSWAIN_INCARNATION", &incarnation));
  options.incarnation = Incarnation(incarnation);
  const std::string backend = Text(get, "COXSWAIN_BACKEND");
  if (!backend.empty()) {
    const auto name = BackendName(backend);
    if (!name.ok()) return WithPrefix("COXSWAIN_BACKEND: ", name.status());
    options.backend = *name;
  }
  COXSWAIN_RETURN_IF_ERROR(
      ReadBool(get, "COXSWAIN_PLAIN_DATA", &options.plain_data));
  options.address = Text(get, "COXSWAIN_BIND_ADDRESS");
  COXSWAIN_RETURN_IF_ERROR(
      ReadDuration(get, "COXSWAIN_JOIN_TIMEOUT", &options.join_timeout));
  COXSWAIN_RETURN_IF_ERROR(
      ReadDuration(get, "COXSWAIN_REATTACH_GRACE", &options.reattach_grace));
  options.trace_file = Text(get, "COXSWAIN_TRACE");
  COXSWAIN_RETURN_IF_ERROR(
      ReadPlan(get, "COXSWAIN_PLAN", &options.plan_overrides));
  return options;
}

absl::StatusOr<std::string> LocalAddressTowards(absl::string_view host_ports) {
  absl::StatusOr<std::string> address;
  for (const std::string& one : Coordinators(host_ports)) {
    address = AddressTowardsOne(one);
    if (address.ok()) break;
  }
  return address;
}

}  // namespace coxswain
