#ifndef COXSWAIN_SERVER_STORAGE_MAKE_FOLDERS_H_
#define COXSWAIN_SERVER_STORAGE_MAKE_FOLDERS_H_

#include <string>

#include "absl/status/status.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// Makes the folder and those above it that are missing, so that all of them
// survive a crash: each name is synced before anything is made under it, which
// holds for what an earlier call made that was cut short, too. OK if the folder
// exists already. The errors are those of FileSystem.
absl::Status MakeFolders(FileSystem* files, const std::string& path);

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORAGE_MAKE_FOLDERS_H_
