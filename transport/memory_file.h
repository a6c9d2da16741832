#ifndef COXSWAIN_TRANSPORT_MEMORY_FILE_H_
#define COXSWAIN_TRANSPORT_MEMORY_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace coxswain {

// A file in memory, for code of this process that reads files by name, as gRPC
// reads certificates: nothing reaches a disk, nor stays when the process ends.
// The contents are replaced in one piece: each open() gets all of the old ones
// or all of the new ones, which have another modification time, in whole
// seconds. Thread-compatible; readers need no lock.
//
// The path names no other kind of file while the process lives: code that still
// reads it after the MemoryFile finds nothing, or another MemoryFile's
// contents.
class MemoryFile {
 public:
  // Empty-handed: it cannot be opened.
  MemoryFile();
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Returns whether there was a descriptor for it. Without, it never has
  // contents.
  bool valid() const { return fd_ >= 0; }

  // Returns where it is read.
  std::string path() const;

  // Replaces the contents. Fails with the system's error; the former contents
  // stay then.
  absl::Status Set(absl::string_view contents);

 private:
  const int fd_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_MEMORY_FILE_H_
