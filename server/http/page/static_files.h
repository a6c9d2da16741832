#ifndef COXSWAIN_SERVER_HTTP_PAGE_STATIC_FILES_H_
#define COXSWAIN_SERVER_HTTP_PAGE_STATIC_FILES_H_

#include <optional>

#include "absl/strings/string_view.h"

namespace coxswain::server {

// A file of the status page, compiled into the program: lives as long as it.
struct StaticFile {
  absl::string_view content_type;
  absl::string_view content;
};

// By its path in the URL, as in "/" or "/style.css". Thread-safe.
std::optional<StaticFile> FindStaticFile(absl::string_view path);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_HTTP_PAGE_STATIC_FILES_H_
