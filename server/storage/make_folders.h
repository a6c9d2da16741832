#ifndef COXSWAIN_SERVER_STORAGE_MAKE_FOLDERS_H_
#define COXSWAIN_SERVER_STORAGE_MAKE_FOLDERS_H_

#include <string>

#include "absl/status/status.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// Makes the folder and those above it that are missing, so that all of them
// survive a crash. Each name on the path is synced before anything is made
// under it, also where it exists already: an earlier call may have been cut
// short. OK if the folder exists. The errors are those of FileSystem.
absl::Status MakeFolders(FileSystem* files, const std::string& path);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORAGE_MAKE_FOLDERS_H_
