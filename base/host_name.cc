#include "base/host_name.h"

#include <unistd.h>

namespace coxswain {

std::string HostName() {
  // Longer than Linux allows; the last byte stays 0, which a name that was cut
  // does not have.
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

}  // namespace coxswain
