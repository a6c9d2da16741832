#include "server/membership/member.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace coxswain::server {

std::string Member::ToString() const {
  return absl::StrCat("rank ", rank, " (", identity.ToString(),
                      host.empty() || host == identity.node ? "" : " on ",
                      host == identity.node ? "" : host, ", incarnation ",
                      absl::StrFormat("%016x", incarnation.value()), ")");
}

}  // namespace coxswain::server
