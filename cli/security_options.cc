#include "cli/security_options.h"

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "cli/address.h"
#include "cli/option_kinds.h"
#include "cli/options.h"

namespace coxswain {
namespace {

constexpr int kMostDays = 10 * 365;

std::string CheckListen(const std::string& text) {
  return std::string(
      ParseHostPort(text, PortRule::kAnyFree).status().message());
}

void AddTlsFiles(CLI::App* app, TlsFiles* files, const std::string& cert,
                 const std::string& ca) {
  AddText(app, "tls-cert", &files->cert, "FILE", cert, nullptr);
  AddText(app, "tls-key", &files->key, "FILE", "the private key of --tls-cert",
          nullptr);
  AddText(app, "tls-ca", &files->ca, "FILE", ca, nullptr);
}

}  // namespace

void AddClientSecurity(CLI::App* app, ClientSecurity* security) {
  AddTlsFiles(app, &security->tls,
              "who you are, for the coordinator: a certificate (PEM)",
              "speak TLS to a coordinator that this certificate authority "
              "vouches for. Files are read again when they change");
  AddText(app, "token-file", &security->token_file, "FILE",
          "who you are, by the bearer token in this file", nullptr);
  AddFlag(app, "--insecure", "insecure", &security->insecure,
          "send the token in plain text, also over a network");
}

std::string CheckSecurity(const ClientSecurity& security,
                          const std::string& coordinator) {
  return std::string(
      CheckClientSecurity(security, coordinator, Clock::Real()->WallTime())
          .message());
}

void AddServeSecurity(CLI::App* app, ServeSecurity* security) {
  AddTlsFiles(app, &security->rpc.tls,
              "speak TLS only, with this certificate (PEM)",
              "callers show a certificate that this certificate authority "
              "vouches for. Files are read again when they change");
  AddText(app, "tokens", &security->rpc.tokens, "FILE",
          "callers show a bearer token: a line for each, 'operator TOKEN' or "
          "'job/NAME TOKEN'",
          nullptr);
  AddText(app, "token-keys", &security->rpc.token_keys, "FILE",
          "tokens that these keys have signed count too (a JSON Web Key Set): "
          "--tokens has a line 'job/NAME subject:SUBJECT' for each subject",
          nullptr);
  AddText(app, "token-issuer", &security->rpc.token_rules.issuer, "ISSUER",
          "who signs them, as they say it themselves", nullptr);
  AddText(app, "token-audience", &security->rpc.token_rules.audience, "NAME",
          "whom they are for: no others count", nullptr);
  AddFlag(app, "--insecure", "insecure", &security->insecure,
          "listen beyond the loopback without requiring certificates: "
          "whoever reaches the address can read the traffic or stop the "
          "coordinator");
  AddText(app, "health-listen", &security->health_listen, "HOST:PORT",
          "answer probes here, over plain HTTP, and nothing else: /liveness, "
          "/readiness and /availability",
          CheckListen);
}

std::string CheckSecurity(const ServeSecurity& security,
                          const std::string& listen) {
  const absl::Status files = security.rpc.Validate(Clock::Real()->WallTime());
  if (!files.ok()) return std::string(files.message());
  const auto address = ParseHostPort(listen, PortRule::kAnyFree);
  if (security.insecure || !address.ok() || IsLoopback(address->host)) {
    return "";
  }
  if (!security.rpc.tokens.empty()) {
    // gRPC reads what a caller sends before it shows a token.
    return absl::StrCat(
        "--listen ", listen,
        " can be reached by callers without a token, and nothing would bound "
        "what they send: with --tokens listen on 127.0.0.1 behind a proxy "
        "(deploy/haproxy), or require certificates (--tls-ca) instead, or give "
        "--insecure if you trust the network");
  }
  if (!security.rpc.tls.ca.empty()) return "";
  return absl::StrCat(
      "--listen ", listen,
      " can be reached from elsewhere, and callers need no certificate: give "
      "--tls-cert, --tls-key and --tls-ca (`coxswain certs init` makes them), "
      "listen on 127.0.0.1, or give --insecure if you trust the network");
}

void AddCertsOptions(CLI::App* app, CertsOptions::Action action,
                     CertsOptions* options) {
  using Action = CertsOptions::Action;
  AddText(app, "dir", &options->dir, "DIR",
          action == Action::kInit ? "the folder to make"
                                  : "the folder that `certs init` made",
          nullptr);
  if (action == Action::kShow) return;
  if (action == Action::kInit) {
    app->add_option("--host", options->hosts,
                    "a name or an address by which workers reach the "
                    "coordinator, beside this host's name and the loopback; "
                    "may be repeated")
        ->type_name("NAME")
        ->allow_extra_args(false);
  }
  app->add_option("--job", options->jobs,
                  "a job that gets a certificate; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->check(CheckJob, "");
  AddNumber(app, "days", &options->days, 1, kMostDays,
            "how long the certificates count");
}

std::string CheckCerts(const CertsOptions& options) {
  if (options.dir.empty()) return "--dir must name a folder";
  if (options.action == CertsOptions::Action::kAdd && options.jobs.empty()) {
    return "nothing to add: give --job NAME";
  }
  return "";
}

}  // namespace coxswain
