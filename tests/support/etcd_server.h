#ifndef COXSWAIN_TESTS_SUPPORT_ETCD_SERVER_H_
#define COXSWAIN_TESTS_SUPPORT_ETCD_SERVER_H_

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/process.h"

namespace coxswain {

// A real etcd of one member, on free ports of the loopback interface, with its
// data in a folder of its own. Killed and removed with this object. A test
// program that cannot start it is aborted with the reason: what needs etcd is
// not tested by passing without. One thread only.
class EtcdServer {
 public:
  // Returns once it answers. `flags` are more of its own.
  explicit EtcdServer(const std::string& flags = "");
  ~EtcdServer();
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  int port() const { return port_; }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

  // Kill it as kill -9 does, and start it again with the same ports and data.
  void Kill();
  void Restart();

 private:
  // Returns whether it answers; else `why` is its output.
  bool Start(std::string* why);

  const std::string flags_;
  std::string folder_;
  int port_ = 0;
  int peer_port_ = 0;
  std::unique_ptr<Process> process_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SUPPORT_ETCD_SERVER_H_
