#ifndef COXSWAIN_SERVER_HTTP_HTTP_MESSAGE_H_
#define COXSWAIN_SERVER_HTTP_HTTP_MESSAGE_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

// {"error":{"code":...,"message":...}}, for people and programs.
HttpAnswer JsonError(int status, const std::string& code,
                     const std::string& message);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_HTTP_MESSAGE_H_
