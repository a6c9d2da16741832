#ifndef COXSWAIN_SERVER_STORAGE_POSIX_FILE_SYSTEM_H_
#define COXSWAIN_SERVER_STORAGE_POSIX_FILE_SYSTEM_H_

#include "server/storage/file_system.h"

namespace coxswain::server {

// The machine's own file system. Never destroyed. Its source file is the one
// place where errno becomes an absl::Status.
FileSystem* PosixFileSystem();

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STORAGE_POSIX_FILE_SYSTEM_H_
