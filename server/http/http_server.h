#ifndef COXSWAIN_SERVER_HTTP_HTTP_SERVER_H_
#define COXSWAIN_SERVER_HTTP_HTTP_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "server/http/http_message.h"
#include "server/http/http_options.h"

namespace coxswain::server {

// Serves GET and HEAD over HTTP/1.1, in plain text, one request a connection.
// Every answer forbids other sites to use it. Owned by whoever runs a
// coordinator. Thread-safe.
class HttpServer {
 public:
  // INVALID_ARGUMENT; UNAVAILABLE if the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const HttpOptions& options, HttpHandler handler);

  // Waits for the requests under way, which end at once or within a moment.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Parts;  // Keeps cpp-httplib out of this header.
  explicit HttpServer(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

// Answers connections that something else has accepted, each by HttpServer's
// rules and on the caller's thread. Thread-safe.
class HttpResponder {
 public:
  // With options that Validate() accepts.
  HttpResponder(const HttpOptions& options, HttpHandler handler);
  ~HttpResponder();
  HttpResponder(const HttpResponder&) = delete;
  HttpResponder& operator=(const HttpResponder&) = delete;

  // Reads one request, answers it and closes the connection, all within twice
  // the options' time limit.
  void Answer(UniqueFd connection);

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_HTTP_SERVER_H_
