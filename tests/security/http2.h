#ifndef COXSWAIN_TESTS_SECURITY_HTTP2_H_
#define COXSWAIN_TESTS_SECURITY_HTTP2_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// As much of HTTP/2 (RFC 9113) and HPACK (RFC 7541) as a client needs that
// keeps to neither. Pure functions.

inline constexpr char kHttp2Preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr uint8_t kHttp2Data = 0;
inline constexpr uint8_t kHttp2Headers = 1;
inline constexpr uint8_t kHttp2Reset = 3;
inline constexpr uint8_t kHttp2Settings = 4;
inline constexpr uint8_t kHttp2Ping = 6;
inline constexpr uint8_t kHttp2WindowUpdate = 8;
inline constexpr uint8_t kHttp2Continuation = 9;
// Flags.
inline constexpr uint8_t kHttp2EndStream = 1;
inline constexpr uint8_t kHttp2EndHeaders = 4;

// Returns the number of `size` bytes at a place, as HTTP/2 writes it.
uint32_t Http2Number(absl::string_view bytes, size_t at, size_t size);

std::string Http2Frame(uint8_t type, uint8_t flags, uint32_t stream,
                       absl::string_view payload);

// Returns the headers of a call of gRPC.
std::string GrpcHeaders(absl::string_view method);

// Returns one more header, of so many bytes.
std::string PaddingHeader(size_t bytes);

// Returns the beginning of a header of 1 GiB (RFC 7541, 5.1).
std::string EndlessHeader();

// Returns a message of gRPC, with or without the flag of a compressed one.
std::string GrpcMessage(absl::string_view bytes, bool compressed = false);
// Returns the prefix of a message of this size.
std::string GrpcMessagePrefix(uint32_t size, bool compressed = false);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_HTTP2_H_
