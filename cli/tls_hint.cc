#include "cli/tls_hint.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace coxswain {

absl::Status HintAtTls(const absl::Status& error,
                       const ClientSecurity& security) {
  const bool whole = !security.tls.ca.empty() && (!security.tls.cert.empty() ||
                                                  !security.token_file.empty());
  if (whole || !absl::IsUnavailable(error)) return error;
  // What gRPC says of a peer that expects, or misses, a handshake.
  constexpr absl::string_view kCutOff[] = {"Connection reset by peer",
                                           "Socket closed", "Broken pipe"};
  const bool cut_off = std::any_of(
      std::begin(kCutOff), std::end(kCutOff), [&](absl::string_view words) {
        return absl::StrContains(error.message(), words);
      });
  if (!cut_off) return error;
  return absl::Status(
      error.code(),
      absl::StrCat(error.message(),
                   ". If the coordinator speaks TLS, give --tls-ca, --tls-cert "
                   "and --tls-key, or a --token-file instead of the last two"));
}

}  // namespace coxswain
