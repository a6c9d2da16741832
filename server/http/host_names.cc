#include "server/http/host_names.h"

#include <arpa/inet.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/host_name.h"

namespace coxswain::server {
namespace {

bool IsIPv4(const std::string& text) {
  in_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1;
}

bool IsIPv6(const std::string& text) {
  in6_addr address;
  return inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

// Without the port, and an IPv6 address without its brackets.
std::string NameOf(absl::string_view header) {
  if (absl::ConsumePrefix(&header, "[")) {
    return std::string(header.substr(0, header.find(']')));
  }
  return absl::AsciiStrToLower(header.substr(0, header.find(':')));
}

}  // namespace

HostNames::HostNames(absl::string_view listen,
                     const std::vector<std::string>& more) {
  names_.insert("localhost");
  if (!listen.empty()) names_.insert(absl::AsciiStrToLower(listen));
  for (const std::string& name : more) {
    names_.insert(absl::AsciiStrToLower(name));
  }
  const std::string own = HostName();
  if (!own.empty()) names_.insert(absl::AsciiStrToLower(own));
}

bool HostNames::Admit(absl::string_view header) const {
  const std::string name = NameOf(absl::StripAsciiWhitespace(header));
  return IsIPv4(name) || IsIPv6(name) || names_.count(name) > 0;
}

bool IsLoopbackHost(absl::string_view host) {
  const std::string name(host);
  if (IsIPv4(name)) return absl::StartsWith(name, "127.");
  in6_addr address;
  if (inet_pton(AF_INET6, name.c_str(), &address) == 1) {
    return IN6_IS_ADDR_LOOPBACK(&address);
  }
  return absl::EqualsIgnoreCase(name, "localhost");
}

}  // namespace coxswain::server
