#ifndef COXSWAIN_TESTS_SUPPORT_NETWORK_HOST_H_
#define COXSWAIN_TESTS_SUPPORT_NETWORK_HOST_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace coxswain {

// A network namespace: what a host of its own looks like to the programs in
// it. Removed with the object, and its end of a cable with it. Needs
// CAP_SYS_ADMIN, CAP_NET_ADMIN and iproute2.
class NetworkHost {
 public:
  explicit NetworkHost(const std::string& name);
  ~NetworkHost();
  NetworkHost(const NetworkHost&) = delete;
  NetworkHost& operator=(const NetworkHost&) = delete;

  // Fails with PERMISSION_DENIED, with the output of `ip`, if that is not
  // possible here.
  absl::Status Make();

  // Connects two hosts that were made by a cable; they get these addresses in
  // one network.
  static absl::Status Connect(NetworkHost* a, const std::string& address_a,
                              NetworkHost* b, const std::string& address_b);

  // Disconnects the cable, or connects it again: without it, nothing that this
  // host sends arrives, nothing reaches it, and no peer is notified.
  absl::Status SetCable(bool in);

  const std::string& name() const { return name_; }
  // Returns the words to put before a command to run it there.
  std::vector<std::string> prefix() const;

 private:
  absl::Status SetAddress(const std::string& device,
                          const std::string& address);

  const std::string name_;
  std::string device_;
  bool made_ = false;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_NETWORK_HOST_H_
