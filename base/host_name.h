#ifndef COXSWAIN_BASE_HOST_NAME_H_
#define COXSWAIN_BASE_HOST_NAME_H_

#include <string>

namespace coxswain {

// Returns the name of this host; empty where the system has none.
std::string HostName();

}  // namespace coxswain

#endif  // COXSWAIN_BASE_HOST_NAME_H_
