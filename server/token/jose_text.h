#ifndef COXSWAIN_SERVER_TOKEN_JOSE_TEXT_H_
#define COXSWAIN_SERVER_TOKEN_JOSE_TEXT_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace coxswain::server {

// The two notations of which signed tokens and sets of keys are made: base64url
// and JSON, read strictly. For this folder. Plain functions; nothing throws,
// whatever the text.

// What a set of keys or a token needs is three deep.
inline constexpr int kMostJsonDepth = 16;

// Returns the bytes of base64url (RFC 4648, section 5) without padding. Returns
// nothing for any other text, such as one with padding, with line breaks, or
// with unused bits set in its last letter: each value has one text.
std::optional<std::string> FromBase64Url(absl::string_view text);

// Returns nothing if the text is no JSON object, or one that is nested deeper.
// Of names that come twice the last one counts.
std::optional<nlohmann::json> ParseJsonObject(absl::string_view text);

// Returns null if the object has no text of that name.
const std::string* FindText(const nlohmann::json& object, const char* name);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_JOSE_TEXT_H_
