#include "cli/address.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/tls_files.h"

namespace coxswain {
namespace {

constexpr int kMaxPort = 65535;

absl::Status Malformed(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' ", why, "; write HOST:PORT, for example ",
                   "127.0.0.1:7077 or [::1]:7077"));
}

}  // namespace

std::string HostPort::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, PortRule rule) {
  const size_t colon = text.rfind(':');
  const size_t bracket = text.rfind(']');
  if (colon == absl::string_view::npos ||
      (bracket != absl::string_view::npos && bracket > colon)) {
    return Malformed(text, "has no port");
  }
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) {
      return Malformed(text, "has a [ without its ]");
    }
  } else if (absl::StrContains(host, ':')) {
    return Malformed(text, "needs brackets around its IPv6 address");
  }
  if (host.empty()) return Malformed(text, "has no host");
  for (const char c : host) {
    if (absl::ascii_isspace(c) || c == '[' || c == ']' || c == '/') {
      return Malformed(text, "has a host with characters that are not allowed");
    }
  }

  const absl::string_view digits = text.substr(colon + 1);
  HostPort result;
  result.host = std::string(host);
  if (digits.empty()) return Malformed(text, "has no port");
  if (!absl::ascii_isdigit(digits[0]) ||
      !absl::SimpleAtoi(digits, &result.port) || result.port > kMaxPort) {
    return Malformed(
        text, absl::StrCat("has a port that is not a number up to ", kMaxPort));
  }
  if (result.port == 0 && rule == PortRule::kNamed) {
    return Malformed(text, "has port 0, to which no client can connect");
  }
  return result;
}

absl::StatusOr<std::vector<HostPort>> ParseHostPorts(absl::string_view text) {
  std::vector<HostPort> addresses;
  std::set<std::string> seen;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    absl::StatusOr<HostPort> address = ParseHostPort(part, PortRule::kNamed);
    if (!address.ok()) return address.status();
    if (!seen.insert(address->ToString()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is named twice in '", text, "'"));
    }
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

bool IsLoopback(absl::string_view host) { return IsLoopbackHost(host); }

}  // namespace coxswain
