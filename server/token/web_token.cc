#include "server/token/web_token.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/token/jose_text.h"

namespace coxswain::server {
namespace {

using Json = nlohmann::json;

// The year 9999: later ones are no dates.
constexpr double kLastSecond = 253402300799;
// Errors travel in headers.
constexpr size_t kMostShownBytes = 200;
constexpr size_t kMostShownAudiences = 4;

absl::Status Refused(absl::string_view what) {
  return absl::UnauthenticatedError(
      absl::StrCat("the token is not valid: ", what));
}

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMostShownBytes)),
                      "'");
}

std::string Shown(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

// Of the token as it came.
struct Parts {
  absl::string_view text;  // that is signed
  Json header;
  std::string payload;
  std::string signature;
};

absl::StatusOr<Parts> Split(absl::string_view token) {
  if (token.size() > kMostWebTokenBytes) {
    return Refused(absl::StrCat("it has ", token.size(), " bytes; at most ",
                                kMostWebTokenBytes, " are accepted"));
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(token, '.');
  if (parts.size() != 3) {
    return Refused("a signed token has three parts with dots between");
  }
  auto header = FromBase64Url(parts[0]);
  auto payload = FromBase64Url(parts[1]);
  auto signature = FromBase64Url(parts[2]);
  if (!header || !payload || !signature) {
    return Refused("one of its parts is no base64url: it was cut or changed");
  }
  auto json = ParseJsonObject(*header);
  if (!json) return Refused("its header is no JSON object");
  return Parts{token.substr(0, token.rfind('.')), *std::move(json),
               *std::move(payload), *std::move(signature)};
}

absl::StatusOr<SignatureKind> KindOfHeader(const Json& header) {
  const std::string* const name = FindText(header, "alg");
  if (name != nullptr && *name == "RS256") return SignatureKind::kRs256;
  if (name != nullptr && *name == "ES256") return SignatureKind::kEs256;
  return Refused("it is signed neither by RS256 nor by ES256");
}

// The signature before anything else: without it nothing else is trusted.
absl::Status CheckSignature(const Parts& parts, const KeySet& keys) {
  COXSWAIN_ASSIGN_OR_RETURN(const SignatureKind kind,
                            KindOfHeader(parts.header));
  if (parts.header.contains("crit")) {
    return Refused("it has extensions ('crit') that are not known here");
  }
  const std::string* const id = FindText(parts.header, "kid");
  if (id == nullptr) return Refused("it does not name its key ('kid')");
  const PublicKey* const key = keys.Find(*id);
  if (key == nullptr) {
    return Refused(
        "its key is none of --token-keys: the issuer has a new one (fetch its "
        "keys again), or the token is another issuer's");
  }
  if (key->kind() != kind || !key->HasSigned(parts.text, parts.signature)) {
    return Refused("its signature is not of the key that it names");
  }
  return absl::OkStatus();
}

// Returns nothing if it is absent, or no date.
std::optional<absl::Time> DateOf(const Json& claims, const char* name) {
  const auto found = claims.find(name);
  if (found == claims.end() || !found->is_number()) return std::nullopt;
  const auto seconds = found->get<double>();
  if (!(seconds >= 0 && seconds <= kLastSecond)) return std::nullopt;
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

absl::StatusOr<absl::Time> CheckDates(const Json& claims, absl::Time now) {
  const auto expires = DateOf(claims, "exp");
  if (!expires) return Refused("it has no time of expiry ('exp')");
  // Does not show the present time: an error that changes with each call would
  // be logged with each call.
  if (now >= *expires + kTokenLeeway) {
    return Refused(absl::StrCat(
        "by the coordinator's clock it expired at ", Shown(*expires),
        ": put the current one into the file of --token-file, which is read "
        "again for each call"));
  }
  if (!claims.contains("nbf")) return *expires;
  const auto begins = DateOf(claims, "nbf");
  if (!begins) return Refused("'nbf' is no date");
  if (now + kTokenLeeway < *begins) {
    return Refused(
        absl::StrCat("by the coordinator's clock it is valid only from ",
                     Shown(*begins), " on: check the clocks of both hosts"));
  }
  return *expires;
}

absl::Status CheckIssuer(const Json& claims, const TokenRules& rules) {
  const std::string* const issuer = FindText(claims, "iss");
  if (issuer == nullptr) return Refused("it does not name its issuer ('iss')");
  if (*issuer == rules.issuer) return absl::OkStatus();
  return Refused(absl::StrCat("its issuer is ", Shown(*issuer),
                              "; --token-issuer is ", Shown(rules.issuer)));
}

// One text, or a list of them; anything else matches nothing.
std::vector<std::string> AudiencesOf(const Json& claims) {
  std::vector<std::string> audiences;
  const auto found = claims.find("aud");
  if (found == claims.end()) return audiences;
  if (found->is_string()) audiences.push_back(found->get<std::string>());
  if (!found->is_array()) return audiences;
  for (const Json& one : *found) {
    if (one.is_string()) audiences.push_back(one.get<std::string>());
  }
  return audiences;
}

absl::Status CheckAudience(const Json& claims, const TokenRules& rules) {
  std::vector<std::string> audiences = AudiencesOf(claims);
  for (std::string& audience : audiences) {
    if (audience == rules.audience) return absl::OkStatus();
    audience = Shown(audience);
  }
  audiences.resize(std::min(audiences.size(), kMostShownAudiences));
  return Refused(absl::StrCat(
      "it is for ",
      audiences.empty() ? "no audience" : absl::StrJoin(audiences, ","),
      " ('aud'), not for ", Shown(rules.audience),
      ": ask for a token with that audience (--token-audience)"));
}

absl::StatusOr<std::string> SubjectOf(const Json& claims) {
  const std::string* const subject = FindText(claims, "sub");
  if (subject != nullptr && IsSubject(*subject)) return *subject;
  return Refused(absl::StrCat("its subject ('sub') is no name of 1 to ",
                              kMostSubjectBytes,
                              " visible characters of ASCII"));
}

}  // namespace

bool IsSubject(absl::string_view text) {
  return !text.empty() && text.size() <= kMostSubjectBytes &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c > ' ' && c < 0x7f; });
}

bool LooksLikeWebToken(absl::string_view text) {
  return std::count(text.begin(), text.end(), '.') == 2;
}

absl::StatusOr<TokenClaims> CheckWebToken(absl::string_view token,
                                          const KeySet& keys,
                                          const TokenRules& rules,
                                          absl::Time now) {
  COXSWAIN_ASSIGN_OR_RETURN(const Parts parts, Split(token));
  COXSWAIN_RETURN_IF_ERROR(CheckSignature(parts, keys));
  const auto claims = ParseJsonObject(parts.payload);
  if (!claims) return Refused("its payload is no JSON object");
  COXSWAIN_RETURN_IF_ERROR(CheckIssuer(*claims, rules));
  COXSWAIN_RETURN_IF_ERROR(CheckAudience(*claims, rules));
  TokenClaims good;
  COXSWAIN_ASSIGN_OR_RETURN(good.expires, CheckDates(*claims, now));
  COXSWAIN_ASSIGN_OR_RETURN(good.subject, SubjectOf(*claims));
  return good;
}

}  // namespace coxswain::server
