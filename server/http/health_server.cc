#include "server/http/health_server.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "server/http/http_server.h"
#include "transport/connection_acceptor.h"
#include "transport/listen_address.h"

namespace coxswain::server {
namespace {

using State = HealthServer::State;

constexpr char kPlainText[] = "text/plain; charset=utf-8";
// Connections whose request is not whole; one more closes the oldest.
constexpr int kMaxWaiting = 256;
constexpr absl::Duration kRequestTimeout = absl::Seconds(2);
// Answers are small and leave at once.
constexpr absl::Duration kAnswerTimeout = absl::Milliseconds(500);

HttpAnswer Verdict(bool good) {
  HttpAnswer answer;
  answer.status = good ? 200 : 503;
  answer.content_type = kPlainText;
  answer.body = good ? "yes\n" : "no\n";
  return answer;
}

HttpAnswer Answer(const std::string& path, State state) {
  if (path == "/liveness") return Verdict(true);
  if (path == "/readiness") return Verdict(state == State::kLeads);
  if (path == "/availability") return Verdict(state != State::kNeither);
  return JsonError(
      404, "NOT_FOUND",
      absl::StrCat("there is nothing at ", path,
                   ": ask for /liveness, /readiness or /availability"));
}

HttpOptions ProbeOptions(absl::string_view listen) {
  HttpOptions options;
  options.listen = std::string(listen);
  options.insecure = true;
  options.time_limit = kAnswerTimeout;
  options.max_request_bytes = ConnectionAcceptor::kMaxHttpRequest;
  return options;
}

}  // namespace

struct HealthServer::Parts {
  explicit Parts(const HttpOptions& options)
      : responder(options, [this](const HttpRequest& request) {
          return Answer(request.path, state);
        }) {}

  std::atomic<State> state{State::kNeither};
  HttpResponder responder;
  int port = 0;
  // Ends first: it hands connections to the responder.
  std::unique_ptr<ConnectionAcceptor> acceptor;
};

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(
    absl::string_view listen) {
  COXSWAIN_ASSIGN_OR_RETURN(const ListenAddress address,
                            ParseListenAddress(listen));
  auto listeners = Listen(address);
  if (!listeners.ok()) {
    return absl::Status(
        listeners.status().code(),
        absl::StrCat("for health checks: ", listeners.status().message()));
  }
  auto parts = std::make_unique<Parts>(ProbeOptions(listen));
  parts->port = listeners->port;
  ConnectionAcceptor::Limits limits;
  limits.max_waiting_connections = kMaxWaiting;
  limits.preface_timeout = kRequestTimeout;
  auto answer = [responder = &parts->responder](UniqueFd connection) {
    responder->Answer(std::move(connection));
  };
  COXSWAIN_ASSIGN_OR_RETURN(
      parts->acceptor,
      ConnectionAcceptor::Open(*std::move(listeners), limits, std::move(answer),
                               // Each is closed before the next is accepted.
                               std::make_shared<AcceptedConnections>(1),
                               Preface::kHttp1));
  return std::unique_ptr<HealthServer>(new HealthServer(std::move(parts)));
}

HealthServer::HealthServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

HealthServer::~HealthServer() = default;

int HealthServer::port() const { return parts_->port; }

void HealthServer::Set(State state) { parts_->state = state; }

}  // namespace coxswain::server
