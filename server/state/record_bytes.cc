#include "server/state/record_bytes.h"

namespace coxswain::server {

void AppendNumber(uint64_t number, std::string* bytes) {
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes->push_back(static_cast<char>(number >> shift & 0xff));
  }
}

void AppendString(absl::string_view text, std::string* bytes) {
  AppendNumber(text.size(), bytes);
  bytes->append(text.data(), text.size());
}

absl::string_view RecordReader::Take(uint64_t size) {
  if (short_ || size > rest_.size()) {
    short_ = true;
    return "";
  }
  const absl::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

uint64_t RecordReader::Number() {
  uint64_t number = 0;
  for (const char byte : Take(8)) {
    number = number << 8 | static_cast<unsigned char>(byte);
  }
  return number;
}

std::string RecordReader::String() {
  const uint64_t size = Number();
  return std::string(Take(size));
}

}  // namespace coxswain::server
