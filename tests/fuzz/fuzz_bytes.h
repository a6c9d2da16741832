#ifndef COXSWAIN_TESTS_FUZZ_FUZZ_BYTES_H_
#define COXSWAIN_TESTS_FUZZ_FUZZ_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// Takes decisions, numbers and texts off a fuzzer's input. Once that is used
// up, everything is 0 or empty, so that any input means something.
class FuzzBytes {
 public:
  // The bytes outlive this object.
  explicit FuzzBytes(absl::string_view bytes) : rest_(bytes) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Byte();
  // Returns a number from 0 to `count` - 1; `count` is 1 to 256.
  size_t Below(size_t count) { return Byte() % count; }
  // Returns one of the numbers at which code breaks, or any other.
  uint64_t Number();
  // Returns the text behind its length, which has one byte.
  absl::string_view Text() { return Take(Byte()); }
  absl::string_view Take(size_t size);
  absl::string_view Rest() { return Take(rest_.size()); }

 private:
  absl::string_view rest_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_FUZZ_BYTES_H_
