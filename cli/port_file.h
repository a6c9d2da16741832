#ifndef COXSWAIN_CLI_PORT_FILE_H_
#define COXSWAIN_CLI_PORT_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace coxswain {

// Writes a port number and a newline to a file that appears at once and
// whole: a script may wait for the file, then read it.
absl::Status WritePortFile(const std::string& path, int port);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_PORT_FILE_H_
