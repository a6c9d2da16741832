#ifndef COXSWAIN_CLIENT_ELASTIC_CATCH_UP_DAMAGED_NETWORK_FOR_TEST_H_
#define COXSWAIN_CLIENT_ELASTIC_CATCH_UP_DAMAGED_NETWORK_FOR_TEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "client/comm/tcp/tcp_socket.h"
#include "client/elastic/catch_up/frame.h"

namespace coxswain::catch_up {

// Between a member and a newcomer, at an address of its own: flips a bit of the
// byte at each of these places of what the member sends.
class DamagedNetwork {
 public:
  struct Place {
    Kind kind = Kind::kState;
    int64_t number = 0;  // of the piece
    int64_t at = 0;      // which of its bytes
    int time = 1;        // the first time that this piece comes, or a later one
  };
  DamagedNetwork(const std::string& newcomer, std::vector<Place> places);
  ~DamagedNetwork();

  std::string address() const;

 private:
  absl::Status Run();
  void Damage(char* bytes, int64_t size);

  const std::vector<Place> places_;
  TcpAddress newcomer_;
  TcpListener listener_;
  WakeFd stop_;
  // Of the thread: the frame that passes.
  std::string head_;
  Header header_;
  int64_t passed_ = 0;  // of its payload
  std::map<std::pair<Kind, int64_t>, int> times_;
  std::thread thread_;
};

}  // namespace coxswain::catch_up

#endif  // COXSWAIN_CLIENT_ELASTIC_CATCH_UP_DAMAGED_NETWORK_FOR_TEST_H_
