#ifndef COXSWAIN_TESTS_SECURITY_HAPROXY_H_
#define COXSWAIN_TESTS_SECURITY_HAPROXY_H_

#include <map>
#include <memory>
#include <string>

#include "tests/support/process.h"

namespace coxswain {

// What haproxy prints once it listens.
inline constexpr char kHaproxyLoaded[] = "Loading success";

// Starts haproxy, and returns once it listens. SIGUSR2 reloads it.
std::unique_ptr<Process> StartHaproxy(
    const std::string& config,
    const std::map<std::string, std::string>& environment);

// What deploy/haproxy needs in front of coordinators: made once, of a folder
// with the files of `coxswain certs init` and of a file of tokens.
class FrontFiles {
 public:
  FrontFiles(std::string certs, const std::string& tokens, std::string maps);

  // Starts deploy/haproxy at a port of the loopback, in front of a coordinator
  // at another. That may still be down: then calls are refused as UNAVAILABLE.
  std::unique_ptr<Process> Start(int front_port, int behind_port,
                                 bool one_of_several = false) const;

 private:
  const std::string certs_;
  const std::string maps_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_HAPROXY_H_
