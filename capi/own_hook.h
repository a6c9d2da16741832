#ifndef COXSWAIN_CAPI_OWN_HOOK_H_
#define COXSWAIN_CAPI_OWN_HOOK_H_

#include <map>
#include <string>

namespace coxswain::capi {

// Returns the hooks that the program has registered by cx_hook_register, as
// settings that all ranks must have in common: "hook_NAME" and the version.
std::map<std::string, std::string> OwnHookSettings();

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_OWN_HOOK_H_
