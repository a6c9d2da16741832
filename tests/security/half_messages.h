#ifndef COXSWAIN_TESTS_SECURITY_HALF_MESSAGES_H_
#define COXSWAIN_TESTS_SECURITY_HALF_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace coxswain {

// A client of HTTP/2 that begins calls, and sends of each a large message, but
// for its last byte. It keeps to the windows that the server
// gives it (RFC 9113, 5.2): else it would be sent away for that. For an attack,
// one for each connection; does no I/O. Thread-compatible.
class HalfMessages {
 public:
  // `padding` bytes are added to the headers of each call.
  explicit HalfMessages(int calls, size_t padding = 0);

  // Takes what the server has sent, in pieces of any size.
  void Take(absl::string_view bytes);
  // Returns what to send next; empty until the server lets it send more.
  std::string More();

 private:
  struct Call {
    int64_t window = 0;
    int64_t left = 0;  // bytes that are to be sent
    bool begun = false;
  };
  void OnFrame(uint8_t type, uint8_t flags, uint32_t stream,
               absl::string_view payload);
  std::string Data(uint32_t stream, Call* call);

  const size_t padding_;
  std::string received_;
  std::string answers_;
  int64_t window_;
  int64_t first_window_;
  std::map<uint32_t, Call> calls_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_HALF_MESSAGES_H_
