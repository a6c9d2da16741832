#ifndef COXSWAIN_SERVER_HTTP_HTTP_SERVER_H_
#define COXSWAIN_SERVER_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace coxswain::server {

// What a page needs to know of a request, and what it answers: the words
// between HttpServer and the pages behind it.
struct HttpRequest {
  std::string path;                          // decoded, without the query
  std::map<std::string, std::string> query;  // decoded; of equals, the last
  std::string if_none_match;
};

struct HttpAnswer {
  int status = 200;
  std::string content_type;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// Called by several threads at once. Must not wait for the network.
using HttpHandler = std::function<HttpAnswer(const HttpRequest&)>;

// {"error":{"code":...,"message":...}}, for display and programs.
HttpAnswer JsonError(int status, const std::string& code,
                     const std::string& message);

struct HttpOptions {
  std::string listen = "127.0.0.1:0";  // HOST:PORT; port 0: any free one
  // Plain HTTP without a login leaves this machine only where this is set.
  bool insecure = false;
  // Names besides addresses, localhost, the one that is listened on, and this
  // machine's, by which the server may be asked for.
  std::vector<std::string> hosts;

  // Connections that are served at once, and how many more wait for a thread;
  // past these, they wait in the kernel's queue.
  int threads = 8;
  size_t max_waiting = 64;
  // From the first byte of a request to its last, and the same for its answer.
  absl::Duration time_limit = absl::Seconds(5);
  // The request line and all headers. There are no bodies.
  size_t max_request_bytes = 16 << 10;
  size_t max_target_bytes = 2 << 10;

  // INVALID_ARGUMENT names what is wrong.
  absl::Status Validate() const;
};

// Serves GET and HEAD over HTTP/1.1, in plain text, one request a connection.
// Every answer forbids other sites to use it. Owned by the
// coordinator's process. Thread-safe.
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
