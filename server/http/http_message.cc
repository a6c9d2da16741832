#include "server/http/http_message.h"

#include "nlohmann/json.hpp"

namespace coxswain::server {

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

}  // namespace coxswain::server
