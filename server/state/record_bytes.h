#ifndef COXSWAIN_SERVER_STATE_RECORD_BYTES_H_
#define COXSWAIN_SERVER_STATE_RECORD_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain::server {

// How rooms put numbers and strings into the keys and values of state records:
// big-endian, so that keys sort as their numbers do, and strings behind their
// length. Plain functions and values; not thread-safe.
void AppendNumber(uint64_t number, std::string* bytes);
void AppendString(absl::string_view text, std::string* bytes);

// Reads what was appended, in the same order. What is not there reads as 0 or
// empty, and complete() is false ever after.
class RecordReader {
 public:
  // The bytes outlive the reader.
  explicit RecordReader(absl::string_view bytes) : rest_(bytes) {}

  uint64_t Number();
  std::string String();

  // Whether everything asked for was there, and nothing else.
  bool complete() const { return !short_ && rest_.empty(); }
  // Whether everything asked for so far was there.
  bool ok() const { return !short_; }
  bool empty() const { return rest_.empty(); }

 private:
  absl::string_view Take(uint64_t size);

  absl::string_view rest_;
  bool short_ = false;
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_STATE_RECORD_BYTES_H_
