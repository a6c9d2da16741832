#include "server/http/http_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "server/http/host_names.h"
#include "transport/listen_address.h"

namespace coxswain::server {
namespace {

// One connection, for one request: all of the request must come within a time
// and a number of bytes, and all of the answer go within that time again,
// however slowly a peer sends or reads its bytes. The library's own stream
// gives the same time to each read. One thread.
class RequestStream : public httplib::Stream {
 public:
  struct Limits {
    absl::Duration time;
    size_t bytes = 0;  // of the request
  };

  // `socket` is non-blocking, and stays the caller's. Raised, `stop` ends what
  // is under way.
  RequestStream(int socket, const Limits& limits, const Clock* clock,
                const std::atomic<bool>* stop);

  bool is_readable() const override { return true; }
  bool is_writable() const override { return !failed_; }
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // None: the library would refuse one above FD_SETSIZE.
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  // Until the socket is ready for these events, or time is up.
  bool Await(short events);
  ssize_t Fill();

  const int socket_;
  const Limits limits_;
  const Clock* const clock_;
  const std::atomic<bool>* const stop_;
  absl::Time deadline_;
  bool answering_ = false;
  bool failed_ = false;
  size_t taken_ = 0;  // from the socket
  std::array<char, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what is in it
};

// How long a stop may go unnoticed.
constexpr absl::Duration kLook = absl::Milliseconds(100);

bool WouldBlock() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

RequestStream::RequestStream(int socket, const Limits& limits,
                             const Clock* clock, const std::atomic<bool>* stop)
    : socket_(socket),
      limits_(limits),
      clock_(clock),
      stop_(stop),
      deadline_(clock->Now() + limits.time) {}

bool RequestStream::Await(short events) {
  while (!failed_ && !stop_->load()) {
    const absl::Duration left = deadline_ - clock_->Now();
    if (left <= absl::ZeroDuration()) break;
    pollfd entry = {socket_, events, 0};
    const auto wait = std::min(left, kLook) + absl::Milliseconds(1);
    const int ready =
        poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) break;
  }
  failed_ = true;
  return false;
}

ssize_t RequestStream::Fill() {
  if (taken_ >= limits_.bytes) failed_ = true;
  while (Await(POLLIN)) {
    const size_t most = std::min(buffer_.size(), limits_.bytes - taken_);
    const ssize_t got = recv(socket_, buffer_.data(), most, 0);
    if (got < 0 && WouldBlock()) continue;
    if (got <= 0) return got;
    taken_ += static_cast<size_t>(got);
    begin_ = 0;
    end_ = static_cast<size_t>(got);
    return got;
  }
  return -1;
}

ssize_t RequestStream::read(char* to, size_t size) {
  if (begin_ == end_) {
    const ssize_t got = Fill();
    if (got <= 0) return got;
  }
  const size_t count = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t RequestStream::write(const char* from, size_t size) {
  if (!answering_) {
    answering_ = true;
    // The reason of a refusal may be sent, although no more is read of it.
    failed_ = false;
    deadline_ = clock_->Now() + limits_.time;
  }
  while (Await(POLLOUT)) {
    const ssize_t sent = send(socket_, from, size, MSG_NOSIGNAL);
    if (sent < 0 && WouldBlock()) continue;
    if (sent < 0) failed_ = true;
    return sent;
  }
  return -1;
}

void RequestStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void RequestStream::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

// Longer than any start of a thread takes.
constexpr absl::Duration kStart = absl::Seconds(30);

// A number of threads, and a queue of a bounded length: where it is full, the
// thread that accepts connections waits.
class BoundedPool : public httplib::TaskQueue {
 public:
  BoundedPool(int threads, size_t max_waiting) : max_waiting_(max_waiting) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Work(); });
    }
  }

  void enqueue(std::function<void()> task) override {
    MutexLock lock(&mutex_);
    changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return tasks_.size() < max_waiting_ || closed_;
    });
    tasks_.push_back(std::move(task));
    changed_.NotifyAll();
  }

  void shutdown() override {
    {
      MutexLock lock(&mutex_);
      closed_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  // Also after the end, what was queued is done: each task closes a socket.
  void Work() {
    while (true) {
      std::function<void()> task;
      {
        MutexLock lock(&mutex_);
        changed_.WaitForWork(&mutex_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
          return !tasks_.empty() || closed_;
        });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        changed_.NotifyAll();
      }
      task();
    }
  }

  const size_t max_waiting_;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

HttpRequest FromLibrary(const httplib::Request& request) {
  HttpRequest result;
  result.path = request.path;
  for (const auto& [name, value] : request.params) result.query[name] = value;
  result.if_none_match = request.get_header_value("If-None-Match");
  return result;
}

void ToLibrary(const HttpAnswer& answer, httplib::Response* response) {
  response->status = answer.status;
  for (const auto& [name, value] : answer.headers) {
    response->set_header(name, value);
  }
  if (answer.status == 304) return;  // has no body
  response->set_content(answer.body, answer.content_type);
}

// No page of another site may read, frame or script what is served here.
httplib::Headers SafeHeaders() {
  return {{"Cache-Control", "no-store"},
          {"Content-Security-Policy",
           "default-src 'self'; base-uri 'none'; form-action 'none'; "
           "frame-ancestors 'none'"},
          {"Cross-Origin-Resource-Policy", "same-origin"},
          {"Referrer-Policy", "no-referrer"},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Frame-Options", "DENY"}};
}

// The library parses and writes; connections, time and size are bounded here.
class Library : public httplib::Server {
 public:
  Library(const HttpOptions& options, const std::string& host,
          HttpHandler handler)
      : options_(options),
        names_(host, options.hosts),
        handler_(std::move(handler)) {
    new_task_queue = [this] {
      MutexLock lock(&mutex_);
      accepting_ = true;
      changed_.NotifyAll();
      return new BoundedPool(options_.threads, options_.max_waiting);
    };
    set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          ToLibrary(Answer(request), &response);
          for (const auto& [name, value] : SafeHeaders()) {
            if (!response.has_header(name)) response.set_header(name, value);
          }
          return HandlerResponse::Handled;
        });
    // The port is never shared: another process would get half the requests.
    set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    set_payload_max_length(0);
  }

  bool AwaitAccepting() {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(
        &mutex_, kStart,
        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return accepting_; });
  }

  void RequestStop() { stop_ = true; }

  bool Serve(UniqueFd connection) {
    const int socket = connection.get();
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL, 0) | O_NONBLOCK);
    RequestStream stream(socket,
                         {options_.time_limit, options_.max_request_bytes},
                         Clock::Real(), &stop_);
    bool closed = false;
    const bool answered =
        process_request(stream, /*close_connection=*/true, closed,
                        [](httplib::Request& request) {
                          // Many overlapping ranges, or a slow compression, of
                          // a long answer would cost far more than it does.
                          request.ranges.clear();
                          request.headers.erase("Range");
                          request.headers.erase("Accept-Encoding");
                        });
    shutdown(socket, SHUT_RDWR);
    return answered;
  }

 private:
  HttpAnswer Answer(const httplib::Request& request) const {
    if (request.method != "GET" && request.method != "HEAD") {
      HttpAnswer answer = JsonError(405, "UNIMPLEMENTED",
                                    "nothing can be changed here: use GET");
      answer.headers.emplace_back("Allow", "GET, HEAD");
      return answer;
    }
    if (request.target.size() > options_.max_target_bytes) {
      return JsonError(414, "INVALID_ARGUMENT",
                       absl::StrCat("the path and its query may have ",
                                    options_.max_target_bytes, " bytes"));
    }
    if (!names_.Admit(request.get_header_value("Host"))) {
      return JsonError(421, "PERMISSION_DENIED",
                       "this server is not called so; say its name to "
                       "`coxswain serve --http-hosts`");
    }
    return handler_(FromLibrary(request));
  }

  bool process_and_close_socket(socket_t socket) override {
    return Serve(UniqueFd(socket));
  }

  const HttpOptions options_;
  const HostNames names_;
  const HttpHandler handler_;
  std::atomic<bool> stop_{false};
  Mutex mutex_;
  CondVar changed_;
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;
};

std::string ListenHost(const HttpOptions& options) {
  const auto address = ParseListenAddress(options.listen);
  return address.ok() ? address->host : "";
}

}  // namespace

HttpAnswer JsonError(int status, const std::string& code,
                     const std::string& message) {
  using nlohmann::json;
  json error;
  error["error"] = {{"code", code}, {"message", message}};
  HttpAnswer answer;
  answer.status = status;
  answer.content_type = "application/json; charset=utf-8";
  answer.body = error.dump(-1, ' ', false, json::error_handler_t::replace);
  return answer;
}

absl::Status HttpOptions::Validate() const {
  COXSWAIN_ASSIGN_OR_RETURN(const auto address, ParseListenAddress(listen));
  if (!insecure && !IsLoopbackHost(address.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--http ", listen,
        " can be reached from elsewhere, in plain text and by everybody: "
        "listen on 127.0.0.1, or say --insecure if you trust the network"));
  }
  if (threads < 1 || threads > 1024 || max_waiting < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "HTTP needs 1 to 1024 threads, not ", threads,
        ", and room for a connection that waits, not ", max_waiting));
  }
  return absl::OkStatus();
}

struct HttpServer::Parts {
  Parts(const HttpOptions& options, const std::string& host,
        HttpHandler handler)
      : library(options, host, std::move(handler)) {}
  ~Parts() {
    library.RequestStop();
    library.stop();
    if (thread.joinable()) thread.join();
  }

  Library library;
  int port = 0;
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const HttpOptions& options, HttpHandler handler) {
  COXSWAIN_RETURN_IF_ERROR(options.Validate());
  COXSWAIN_ASSIGN_OR_RETURN(const auto address,
                            ParseListenAddress(options.listen));
  auto parts =
      std::make_unique<Parts>(options, address.host, std::move(handler));
  const std::string host = address.host.empty() ? "0.0.0.0" : address.host;
  errno = 0;
  if (address.port == 0) {
    parts->port = parts->library.bind_to_any_port(host);
  } else if (parts->library.bind_to_port(host, address.port)) {
    parts->port = address.port;
  }
  if (parts->port <= 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen for HTTP on '", options.listen, "'",
        errno == 0 ? "" : absl::StrCat(": ", std::strerror(errno))));
  }
  Library* const library = &parts->library;
  parts->thread = std::thread([library] { library->listen_after_bind(); });
  if (!library->AwaitAccepting()) {
    return absl::UnavailableError("the HTTP server's thread does not run");
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parts)));
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return parts_->port; }

struct HttpResponder::Parts {
  Library library;
};

HttpResponder::HttpResponder(const HttpOptions& options, HttpHandler handler)
    : parts_(new Parts{{options, ListenHost(options), std::move(handler)}}) {}

HttpResponder::~HttpResponder() = default;

void HttpResponder::Answer(UniqueFd connection) {
  parts_->library.Serve(std::move(connection));
}

}  // namespace coxswain::server
