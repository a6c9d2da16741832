#include "server/http/static_files.h"

namespace coxswain::server {

// The status page has no files: all that is served is data.
std::optional<StaticFile> FindStaticFile(absl::string_view /*path*/) {
  return std::nullopt;
}

}  // namespace coxswain::server
