#include "server/membership/member.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mesh.h"

namespace coxswain::server {

std::string Member::Place() const {
  return WithCoordinates(coordinates, identity.ToString());
}

std::string Member::ToString() const {
  return absl::StrCat("rank ", rank, " (", Place(),
                      host.empty() || host == identity.node ? "" : " on ",
                      host == identity.node ? "" : host, ", incarnation ",
                      absl::StrFormat("%016x", incarnation.value()), ")");
}

}  // namespace coxswain::server
