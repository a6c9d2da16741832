#include "client/rpc/connection_hint.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/certificates.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "client/rpc/credentials.h"
#include "grpcpp/grpcpp.h"

namespace coxswain {
namespace {

constexpr absl::Duration kEach = absl::Seconds(2);

// Returns HOST of HOST:PORT, without brackets.
std::string HostOf(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

// Returns whether a connection can be made, whatever is at its other end.
bool Accepts(const std::string& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = address.substr(address.rfind(':') + 1);
  if (getaddrinfo(HostOf(address).c_str(), port.c_str(), &hints, &found) != 0) {
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found,
                                                               &freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const UniqueFd fd(
        socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return true;
    if (errno != EINPROGRESS) continue;
    pollfd ready = {fd.get(), POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof(error);
    if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(kEach))) ==
            1 &&
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
        error == 0) {
      return true;
    }
  }
  return false;
}

// Returns whether a connection of gRPC comes about; tries once.
bool Connects(const std::shared_ptr<grpc::Channel>& channel) {
  const auto deadline =
      std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kEach);
  auto state = channel->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY &&
         state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    if (!channel->WaitForStateChange(state, deadline)) return false;
    state = channel->GetState(true);
  }
  return state == GRPC_CHANNEL_READY;
}

ClientSecurity Only(const TlsFiles& tls) { return {tls, "", false}; }

std::string NameOf(const CertificateFacts& facts) {
  return absl::StrCat("certificate '", facts.common_name, "'");
}

std::string NotAccepted(const TlsFiles& own) {
  constexpr absl::string_view kFine =
      "the coordinator's certificate is accepted, but it has refused the "
      "connection: ";
  if (own.cert.empty()) {
    return absl::StrCat(kFine,
                        "it probably asks for a certificate: give --tls-cert "
                        "and --tls-key");
  }
  return absl::StrCat(kFine, "it probably does not trust the certificate in ",
                      own.cert, ": give one with --tls-cert and --tls-key ",
                      "that the coordinator's --tls-ca has signed");
}

// Returns what is wrong with the certificate that the coordinator shows.
std::string CheckShown(const std::string& chain, const std::string& address,
                       const TlsFiles& own) {
  const auto facts = ReadCertificate(chain);
  if (!facts.ok()) return "";
  if (Clock::Real()->WallTime() > facts->not_after) {
    return absl::StrCat(
        "the coordinator's ", NameOf(*facts), " expired at ",
        absl::FormatTime(facts->not_after, absl::UTCTimeZone()),
        ": renew the file of its --tls-cert (docs/security.md, Renewal)");
  }
  const auto ca = WatchedFile(own.ca).Read();
  const absl::Status vouched = CheckSignedBy(chain, ca.ok() ? *ca : "");
  if (!vouched.ok()) {
    return absl::StrCat("no authority in ", own.ca, " has signed the ",
                        "coordinator's ", NameOf(*facts), " (",
                        vouched.message(), "): give the ca.crt of that ",
                        "coordinator with --tls-ca");
  }
  const std::string host = HostOf(address);
  if (!NamesHost(chain, host)) {
    return absl::StrCat(
        "the coordinator's ", NameOf(*facts), " is for ",
        facts->hosts.empty() ? "no host" : absl::StrJoin(facts->hosts, ", "),
        ", and not for ", host, ": give one of its names with --coordinator, ",
        "or have the coordinator's authority sign a certificate for this one "
        "(docs/security.md, Who a caller is; `coxswain certs init` makes a new "
        "authority, for which all certificates are made anew)");
  }
  return NotAccepted(own);
}

std::string HintAt(const std::string& address, const ClientSecurity& security) {
  if (!Accepts(address)) return "";
  if (Connects(MakeCoordinatorChannel(address, Only(security.tls)))) return "";
  const std::string chain = ShownCertificates(
      address, security.tls,
      [](const std::shared_ptr<grpc::Channel>& asked) { Connects(asked); });
  const bool encrypted = IsEncrypted(security);
  if (!chain.empty() && encrypted) {
    return CheckShown(chain, address, security.tls);
  }
  if (!chain.empty()) {
    return "it requires TLS: give --tls-ca, and --tls-cert and --tls-key, or a "
           "--token-file instead of the last two";
  }
  if (encrypted && Connects(MakeCoordinatorChannel(address))) {
    return "it speaks plain text, and --tls-ca asks for TLS: leave --tls-ca, "
           "--tls-cert and --tls-key out, or start `coxswain serve` with "
           "--tls-cert, --tls-key and --tls-ca";
  }
  return absl::StrCat("what listens there speaks neither gRPC nor TLS: it is ",
                      "another program, or it hangs; check the port in ",
                      "--coordinator");
}

}  // namespace

std::string ConnectionHint(const std::string& addresses,
                           const ClientSecurity& security) {
  const absl::Status files =
      CheckTlsFiles(security.tls, Clock::Real()->WallTime());
  if (!files.ok()) return std::string(files.message());
  for (const std::string& address :
       std::vector<std::string>(absl::StrSplit(addresses, ','))) {
    const std::string hint = HintAt(address, security);
    if (!hint.empty()) return absl::StrCat(address, ": ", hint);
  }
  return "";
}

absl::Status WithConnectionHint(const absl::Status& error,
                                const std::string& addresses,
                                const ClientSecurity& security) {
  if (!absl::IsUnavailable(error) && !absl::IsDeadlineExceeded(error)) {
    return error;
  }
  const std::string hint = ConnectionHint(addresses, security);
  if (hint.empty()) return error;
  return absl::Status(
      error.code(), absl::StrCat(error.message(), ". Probable cause: ", hint));
}

}  // namespace coxswain
