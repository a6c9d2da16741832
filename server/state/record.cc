#include "server/state/record.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace coxswain::server {
namespace {

constexpr size_t kDigits = 16;

int Digit(char c) {
  if (absl::ascii_isdigit(c)) return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

std::string SerializeRecord(const google::protobuf::MessageLite& message) {
  std::string bytes(message.ByteSizeLong(), '\0');
  google::protobuf::io::ArrayOutputStream array(&bytes[0],
                                                static_cast<int>(bytes.size()));
  google::protobuf::io::CodedOutputStream coded(&array);
  coded.SetSerializationDeterministic(true);
  message.SerializeWithCachedSizes(&coded);
  coded.Trim();
  return bytes;
}

bool ParseRecord(absl::string_view bytes,
                 google::protobuf::MessageLite* message) {
  return bytes.size() <= std::numeric_limits<int>::max() &&
         message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

std::string NumberedKey(char letter, uint64_t number) {
  return absl::StrCat(std::string(1, letter),
                      absl::Hex(number, absl::kZeroPad16));
}

std::optional<uint64_t> NumberOfKey(absl::string_view key) {
  if (key.size() != 1 + kDigits) return std::nullopt;
  uint64_t number = 0;
  for (const char c : key.substr(1)) {
    const int digit = Digit(c);
    if (digit < 0) return std::nullopt;
    number = number << 4 | static_cast<uint64_t>(digit);
  }
  return number;
}

}  // namespace coxswain::server
