#include "server/token/jose_text.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

namespace coxswain::server {

using Json = nlohmann::json;

std::optional<std::string> FromBase64Url(absl::string_view text) {
  std::string bytes;
  // Encoding it again excludes what Abseil accepts beyond that.
  if (!absl::WebSafeBase64Unescape(text, &bytes) ||
      absl::WebSafeBase64Escape(bytes) != text) {
    return std::nullopt;
  }
  return bytes;
}

std::optional<Json> ParseJsonObject(absl::string_view text) {
  bool too_deep = false;
  // Drops what is too deep. The parser itself does not recurse.
  const auto keep = [&too_deep](int depth, Json::parse_event_t /*event*/,
                                Json& /*parsed*/) {
    too_deep = too_deep || depth > kMostJsonDepth;
    return !too_deep;
  };
  Json json = Json::parse(text.begin(), text.end(), keep,
                          /*allow_exceptions=*/false);
  if (too_deep || !json.is_object()) return std::nullopt;
  return json;
}

const std::string* FindText(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return nullptr;
  return found->get_ptr<const std::string*>();
}

}  // namespace coxswain::server
