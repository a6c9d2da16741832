#ifndef COXSWAIN_TESTS_FUZZ_SERVICES_H_
#define COXSWAIN_TESTS_FUZZ_SERVICES_H_

#include "absl/strings/string_view.h"

// The targets that call services; see fuzz_target.h.

namespace coxswain {

// Calls any rpc, with messages that are valid but for some fields, or are none.
void FuzzServices(absl::string_view input);
// Calls only the streams of members and of tensors, which keep more state.
void FuzzStreams(absl::string_view input);

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_FUZZ_SERVICES_H_
