#include "tests/security/reachable.h"

#include <signal.h>

#include <chrono>
#include <fstream>
#include <future>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/grpc_status.h"
#include "base/status_matchers.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/security/haproxy.h"
#include "tests/support/loopback.h"

namespace coxswain {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);
// Where attackers come from: the proxy counts sources by their address.
constexpr char kAttackersAddress[] = "127.0.7.7";

std::string TextOf(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::string NameOf(Way way) {
  switch (way) {
    case Way::kInsecure:
      return "Insecure";
    case Way::kCertificates:
      return "Certificates";
    case Way::kProxy:
      return "Proxy";
  }
  return "";
}

ReachableCoordinator::ReachableCoordinator(Way way) : way_(way) {
  MakeCertificates();
  std::vector<std::string> before = {"sh", "-c", "exec \"$@\" 2>>\"$LOG\"",
                                     "sh"};
  std::string flags = absl::StrCat(" --max-held-mib ", kMaxHeldMib);
  if (way == Way::kCertificates) {
    absl::StrAppend(&flags, " --tls-cert ", Made("coordinator.crt"),
                    " --tls-key ", Made("coordinator.key"), " --tls-ca ",
                    Made("ca.crt"));
  }
  if (way == Way::kProxy) {
    std::ofstream(folder_.path("tokens"))
        << "job/rows " << std::string(64, 'a') << "\njob/attacker "
        << std::string(64, 'b') << "\n";
    absl::StrAppend(&flags, " --tokens ", folder_.path("tokens"));
  }
  before[2] = absl::StrCat("exec \"$@\"", flags, " 2>>", folder_.path("log"));
  coordinator_ = std::make_unique<ServedCoordinator>("127.0.0.1:0", before);
  port_ = stranger_port_ = member_port_ = coordinator_->port();
  if (way == Way::kProxy) StartProxy();
  if (way != Way::kInsecure) StartTunnels();
}

void ReachableCoordinator::MakeCertificates() {
  const Ended made =
      RunToEnd({kCoxswain, "certs", "init", "--dir", folder_.path("certs"),
                "--job", "rows", "--job", "attacker"});
  ASSERT_EQ(made.status, 0) << made.err;
}

void ReachableCoordinator::StartProxy() {
  port_ = UnusedPort();
  // Calls before its check of the coordinator are refused as by one that
  // starts: tried again.
  proxy_ = FrontFiles(folder_.path("certs"), folder_.path("tokens"),
                      folder_.path("maps"))
               .Start(port_, coordinator_->port());
}

// What turns an attacker's plain text into TLS: haproxy as a client.
void ReachableCoordinator::StartTunnels() {
  stranger_port_ = UnusedPort();
  member_port_ = UnusedPort();
  std::ofstream(Made("attacker.pem"))
      << TextOf(Made("job-attacker.crt")) << TextOf(Made("job-attacker.key"));
  const auto tunnel = [this](const char* name, int port,
                             const std::string& certificate) {
    return absl::StrCat("listen ", name, "\n  bind 127.0.0.1:", port,
                        "\n  server target 127.0.0.1:", port_, " source ",
                        kAttackersAddress, " ssl verify none alpn h2",
                        certificate, "\n");
  };
  const std::string config = folder_.path("tunnels.cfg");
  std::ofstream(config)
      << "global\n  maxconn 8000\ndefaults\n  mode tcp\n"
         "  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
      << tunnel("stranger", stranger_port_, "")
      << tunnel("member", member_port_,
                absl::StrCat(" crt ", Made("attacker.pem")));
  tunnels_ = StartHaproxy(config, {});
}

std::vector<std::string> ReachableCoordinator::WorkerOptions() const {
  std::vector<std::string> options = {"--job", "rows", "--coordinator",
                                      absl::StrCat("127.0.0.1:", port_)};
  if (way_ != Way::kInsecure) {
    for (const auto& [flag, file] : {std::pair("--tls-ca", "ca.crt"),
                                     std::pair("--tls-cert", "job-rows.crt"),
                                     std::pair("--tls-key", "job-rows.key")}) {
      options.emplace_back(flag);
      options.push_back(Made(file));
    }
  }
  return options;
}

int ReachableCoordinator::PortFor(bool member) const {
  return member ? member_port_ : stranger_port_;
}

absl::Status ReachableCoordinator::Probe(bool member) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", PortFor(member)),
                                grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoSeconds(kTimeout));
  const grpc::Slice empty;
  const grpc::ByteBuffer request(&empty, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/coxswain.v1.Schedule/GetPlan", grpc::StubOptions(),
                 &request, &response,
                 [&ended](grpc::Status status) { ended.set_value(status); });
  return FromGrpcStatus(ended.get_future().get());
}

void ReachableCoordinator::ReloadProxy() {
  const size_t before = LinesWith(proxy_->err(), kHaproxyLoaded).size();
  proxy_->Signal(SIGUSR2);
  const absl::Time deadline = Clock::Real()->Now() + kTimeout;
  while (LinesWith(proxy_->err(), kHaproxyLoaded).size() == before) {
    ASSERT_LT(Clock::Real()->Now(), deadline) << proxy_->err();
    // Reads what comes meanwhile.
    (void)proxy_->WaitForStderr("what it never prints", kLook);
  }
}

std::string ReachableCoordinator::Stop() {
  coordinator_->Stop();
  return TextOf(folder_.path("log"));
}

}  // namespace coxswain
