#include "client/comm/tcp/hello.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/comm/wire.h"

namespace coxswain {
namespace {

constexpr char kPlaceVersion[] = "2";
constexpr char kHelloLetters[] = "CXSTCP01";
constexpr char kAnswerLetters[] = "CXSTCPOK";
constexpr size_t kLetters = 8;
constexpr char kEncrypted[] = "tls";
constexpr char kPlainText[] = "plain";

bool FromHex(absl::string_view text, uint64_t* value) {
  return absl::SimpleHexAtoi(text, value);
}

}  // namespace

std::string EncodePlace(const TcpPlace& place) {
  return absl::StrCat(kPlaceVersion, " ", place.address.host, " ",
                      place.address.port, " ", absl::Hex(place.call_token), " ",
                      absl::Hex(place.answer_token), " ", absl::Hex(place.host),
                      " ", place.encrypts ? kEncrypted : kPlainText);
}

absl::StatusOr<TcpPlace> DecodePlace(absl::string_view text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  TcpPlace place;
  if (words.size() == 7 && words[0] == kPlaceVersion &&
      absl::SimpleAtoi(words[2], &place.address.port) &&
      FromHex(words[3], &place.call_token) &&
      FromHex(words[4], &place.answer_token) &&
      FromHex(words[5], &place.host) &&
      (words[6] == kEncrypted || words[6] == kPlainText)) {
    place.address.host = words[1];
    place.encrypts = words[6] == kEncrypted;
    return place;
  }
  return absl::InternalError(
      "what it has published cannot be read: it runs another version of the "
      "library");
}

TcpHelloBytes Encode(const TcpHello& hello) {
  TcpHelloBytes bytes = {};
  std::memcpy(bytes.data(), kHelloLetters, kLetters);
  char* at = bytes.data() + kLetters;
  for (const uint64_t value :
       {hello.communicator, hello.call_token, hello.host}) {
    at = PutLittleEndian(value, at);
  }
  for (const uint32_t value :
       {hello.size, hello.from, hello.to, hello.index, hello.count}) {
    at = PutLittleEndian(value, at);
  }
  return bytes;
}

std::optional<TcpHello> DecodeHello(const TcpHelloBytes& bytes) {
  if (std::memcmp(bytes.data(), kHelloLetters, kLetters) != 0) {
    return std::nullopt;
  }
  TcpHello hello;
  const char* at = bytes.data() + kLetters;
  for (uint64_t* const value :
       {&hello.communicator, &hello.call_token, &hello.host}) {
    at = GetLittleEndian(at, value);
  }
  for (uint32_t* const value :
       {&hello.size, &hello.from, &hello.to, &hello.index, &hello.count}) {
    at = GetLittleEndian(at, value);
  }
  return hello;
}

TcpAnswerBytes EncodeAnswer(uint64_t answer_token) {
  TcpAnswerBytes bytes = {};
  std::memcpy(bytes.data(), kAnswerLetters, kLetters);
  PutLittleEndian(answer_token, bytes.data() + kLetters);
  return bytes;
}

}  // namespace coxswain
