#ifndef COXSWAIN_TESTS_SECURITY_REACHABLE_H_
#define COXSWAIN_TESTS_SECURITY_REACHABLE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/system/scenario.h"

namespace coxswain {

// The ways in which a coordinator is reached (docs/security.md).
enum class Way {
  kInsecure,      // plain text, without any identity
  kCertificates,  // --tls-ca: each caller shows a certificate
  kProxy,         // tokens on the loopback, and deploy/haproxy in front
};
std::string NameOf(Way way);

// `coxswain serve` that is reached in one of the ways, with certificates of the
// jobs "rows" and "attacker". Its log goes to a file.
class ReachableCoordinator {
 public:
  // Its --max-held-mib.
  static constexpr int kMaxHeldMib = 256;

  // Returns once it is reached by workers.
  explicit ReachableCoordinator(Way way);

  // Returns the options of `coxswain run` for the job "rows".
  std::vector<std::string> WorkerOptions() const;

  // Returns a port of the loopback to which an attacker speaks plain text. What
  // is sent there arrives from an address of its own, over TLS where the
  // coordinator or its proxy speaks TLS: with the certificate of the job
  // "attacker" if the attacker is a member, without one if it is a stranger.
  int PortFor(bool member) const;

  // Returns the status of an attacker's call with an invalid message, which
  // shows that an attack reaches its target.
  absl::Status Probe(bool member) const;

  // Reloads the proxy, as after a change of its maps. Way::kProxy only.
  void ReloadProxy();

  pid_t pid() { return coordinator_->process().pid(); }
  // Ends it as a user would, and returns what it has logged.
  std::string Stop();

 private:
  std::string Made(const std::string& file) const {
    return folder_.path("certs/" + file);
  }
  void MakeCertificates();
  void StartProxy();
  void StartTunnels();

  const Way way_;
  const TemporaryFolder folder_;
  std::unique_ptr<ServedCoordinator> coordinator_;
  std::unique_ptr<Process> proxy_;
  std::unique_ptr<Process> tunnels_;
  int port_ = 0;  // that workers use
  int stranger_port_ = 0;
  int member_port_ = 0;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_REACHABLE_H_
