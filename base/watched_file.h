#ifndef COXSWAIN_BASE_WATCHED_FILE_H_
#define COXSWAIN_BASE_WATCHED_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace coxswain {

// A small file that may be replaced while the program runs, such as a token
// that is renewed. Kept by whoever uses what is in it. Thread-compatible.
class WatchedFile {
 public:
  // Larger ones are refused: whoever writes the file bounds our memory else.
  static constexpr int64_t kMaxBytes = 1 << 20;

  explicit WatchedFile(std::string path) : path_(std::move(path)) {}

  // Whether the file is another one, or has other times or another size, than
  // at the last Read(); true before the first. Costs one look at the file.
  bool Changed() const;

  // What is in it now. NOT_FOUND, PERMISSION_DENIED, ... as the system says,
  // INVALID_ARGUMENT if it is too large; messages name the file.
  absl::StatusOr<std::string> Read();

  const std::string& path() const { return path_; }

 private:
  struct Mark {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size = -1;
    int64_t modified_ns = 0;
    int64_t changed_ns = 0;
  };
  static Mark MarkOf(const std::string& path);

  const std::string path_;
  bool read_ = false;
  Mark mark_;
};

}  // namespace coxswain

#endif  // COXSWAIN_BASE_WATCHED_FILE_H_
