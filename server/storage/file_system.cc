#include <cstddef>

#include "base/status_macros.h"
#include "server/storage/file_system.h"

namespace coxswain::server {
namespace {

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

absl::Status MakeFolders(FileSystem* files, const std::string& path) {
  size_t end = 0;
  while (end != std::string::npos) {
    end = path.find('/', end + 1);
    const std::string folder = path.substr(0, end);
    if (folder.empty() || folder.back() == '/') continue;
    COXSWAIN_RETURN_IF_ERROR(files->MakeFolder(folder));
    const absl::Status synced = files->SyncFolder(ParentOf(folder));
    // A folder that may not be read cannot be synced; its owner has made what
    // is in it. Some file systems (autofs, procfs, squashfs) have no sync for
    // folders.
    if (!absl::IsPermissionDenied(synced) && !absl::IsInvalidArgument(synced)) {
      COXSWAIN_RETURN_IF_ERROR(synced);
    }
  }
  return absl::OkStatus();
}

}  // namespace coxswain::server
