#ifndef COXSWAIN_CLI_SECURITY_OPTIONS_H_
#define COXSWAIN_CLI_SECURITY_OPTIONS_H_

#include <string>
#include <vector>

#include "base/tls_files.h"
#include "server/token/security.h"

namespace CLI {
class App;
}

namespace coxswain {

// Certificates and tokens on the command line: the same flags for every command
// that speaks to a coordinator. For cli/options.cc and cli/command_checks.cc.

void AddClientSecurity(CLI::App* app, ClientSecurity* security);

// What is wrong with them together, and with the files; empty if nothing is.
// `coordinator` is HOST:PORT, or several with commas between.
std::string CheckSecurity(const ClientSecurity& security,
                          const std::string& coordinator);

// Who may speak to `coxswain serve`, and how.
struct ServeSecurity {
  server::SecurityOptions rpc;
  bool insecure = false;      // plain text may leave this machine
  std::string health_listen;  // HOST:PORT; empty: no port for health checks
};

void AddServeSecurity(CLI::App* app, ServeSecurity* security);
std::string CheckSecurity(const ServeSecurity& security,
                          const std::string& listen);

// Of `coxswain certs`.
struct CertsOptions {
  enum class Action { kInit, kAdd, kShow };
  Action action = Action::kInit;
  std::string dir = "coxswain-certs";
  std::vector<std::string> hosts;  // of the coordinator
  std::vector<std::string> jobs;
  int days = 365;
};

void AddCertsOptions(CLI::App* app, CertsOptions::Action action,
                     CertsOptions* options);
std::string CheckCerts(const CertsOptions& options);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_SECURITY_OPTIONS_H_
