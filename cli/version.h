#ifndef COXSWAIN_CLI_VERSION_H_
#define COXSWAIN_CLI_VERSION_H_

#include <string>

namespace coxswain {

// `coxswain version`: the version of this program and of the libraries that
// decide what it speaks on the wire. Ends with a newline.
std::string VersionText();

}  // namespace coxswain

#endif  // COXSWAIN_CLI_VERSION_H_
