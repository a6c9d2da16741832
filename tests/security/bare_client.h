#ifndef COXSWAIN_TESTS_SECURITY_BARE_CLIENT_H_
#define COXSWAIN_TESTS_SECURITY_BARE_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.h"

namespace coxswain {

// A client that speaks HTTP/2 by hand, to a port of the loopback. One thread.
class BareClient {
 public:
  // No wait is longer.
  static constexpr int kTimeoutMs = 20'000;

  // Returns the first bytes of a client.
  static std::string Preface();

  explicit BareClient(int port);

  void Send(const std::string& bytes);
  // Reads until the server has sent this. Returns false if it has closed
  // before.
  bool Receives(const std::string& text);
  // Returns the setting with this id among the server's first ones.
  std::optional<uint32_t> Setting(uint16_t id);

 private:
  std::string Read(size_t size);

  const UniqueFd fd_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_BARE_CLIENT_H_
