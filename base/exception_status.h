#ifndef COXSWAIN_BASE_EXCEPTION_STATUS_H_
#define COXSWAIN_BASE_EXCEPTION_STATUS_H_

#include "absl/status/status.h"

namespace coxswain {

// In a catch block: returns INTERNAL, with the text of the exception.
absl::Status StatusOfException();

// Returns what `action` does, an absl::Status or absl::StatusOr; of an
// exception its StatusOfException.
template <typename Action>
auto WithoutExceptions(const Action& action) -> decltype(action()) {
  try {
    return action();
  } catch (...) {
    return StatusOfException();
  }
}

}  // namespace coxswain

#endif  // COXSWAIN_BASE_EXCEPTION_STATUS_H_
