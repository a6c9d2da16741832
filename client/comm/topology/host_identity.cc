#include "client/comm/topology/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace coxswain {

std::string HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  struct stat users {};
  if (boot.empty() || stat("/proc/self/ns/net", &network) != 0 ||
      stat("/proc/self/ns/user", &users) != 0) {
    return absl::StrCat("unknown-", absl::Hex(RandomSource::System()->Next()));
  }
  return absl::StrCat(boot, "/net:", static_cast<uint64_t>(network.st_ino),
                      "/users:", static_cast<uint64_t>(users.st_ino),
                      "/user:", geteuid());
}

}  // namespace coxswain
