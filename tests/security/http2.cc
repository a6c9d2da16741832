#include "tests/security/http2.h"

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

std::string BigEndian(uint64_t number, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(number >> shift));
  }
  return text;
}

// In words, and not to be remembered (RFC 7541, 6.2.2).
std::string Header(absl::string_view name, absl::string_view value) {
  std::string header(1, '\0');
  for (const absl::string_view text : {name, value}) {
    // A number with a prefix of 7 bits (RFC 7541, 5.1).
    if (text.size() < 127) {
      header.push_back(static_cast<char>(text.size()));
    } else {
      header.push_back(127);
      size_t rest = text.size() - 127;
      for (; rest >= 128; rest >>= 7) {
        header.push_back(static_cast<char>(rest % 128 + 128));
      }
      header.push_back(static_cast<char>(rest));
    }
    header.append(text.data(), text.size());
  }
  return header;
}

}  // namespace

uint32_t Http2Number(absl::string_view bytes, size_t at, size_t size) {
  uint32_t number = 0;
  for (const char c : bytes.substr(at, size)) {
    number = number << 8 | static_cast<unsigned char>(c);
  }
  return number;
}

std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream,
                       absl::string_view payload) {
  return absl::StrCat(BigEndian(payload.size(), 3), BigEndian(type, 1),
                      BigEndian(flags, 1), BigEndian(stream, 4), payload);
}

std::string GrpcHeaders(absl::string_view method) {
  return absl::StrCat(Header(":method", "POST"), Header(":scheme", "http"),
                      Header(":path", method), Header(":authority", "c"),
                      Header("content-type", "application/grpc"),
                      Header("te", "trailers"));
}

std::string PaddingHeader(size_t bytes) {
  return Header("x-padding", std::string(bytes, 'p'));
}

std::string EndlessHeader() {
  return std::string("\x00\x01\x61\x7f\x81\xff\xff\xff\x03", 9);
}

std::string GrpcMessage(absl::string_view bytes, bool compressed) {
  return absl::StrCat(
      GrpcMessagePrefix(static_cast<uint32_t>(bytes.size()), compressed),
      bytes);
}

std::string GrpcMessagePrefix(uint32_t size, bool compressed) {
  return absl::StrCat(BigEndian(compressed ? 1 : 0, 1), BigEndian(size, 4));
}

}  // namespace coxswain
