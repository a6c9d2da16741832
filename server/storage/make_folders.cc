#include "server/storage/make_folders.h"

#include <cstddef>

#include "base/status_macros.h"

namespace coxswain::server {
namespace {

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

absl::Status MakeFolders(FileSystem* files, const std::string& path) {
  const std::string folder = WithoutSlashes(path);
  const std::string parent = WithoutSlashes(ParentOf(folder));
  absl::Status made = files->MakeFolder(folder);
  const bool parent_is_missing = absl::IsNotFound(made) && parent != folder;
  if (parent_is_missing) {
    COXSWAIN_RETURN_IF_ERROR(MakeFolders(files, parent));
    made = files->MakeFolder(folder);
  }
  COXSWAIN_RETURN_IF_ERROR(made);
  const absl::Status synced = files->SyncFolder(parent);
  // A folder that may not be read cannot be synced. It was there before, as is,
  // as a rule, what it leads to.
  if (absl::IsPermissionDenied(synced) && !parent_is_missing) {
    return absl::OkStatus();
  }
  return synced;
}

}  // namespace coxswain::server
