#ifndef COXSWAIN_BASE_STATUS_MACROS_H_
#define COXSWAIN_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expr` is not OK.
#define COXSWAIN_RETURN_IF_ERROR(expr)                   \
  do {                                                   \
    ::absl::Status coxswain_status_ = (expr);            \
    if (!coxswain_status_.ok()) return coxswain_status_; \
  } while (false)

#define COXSWAIN_MACRO_CONCAT_INNER(a, b) a##b
#define COXSWAIN_MACRO_CONCAT(a, b) COXSWAIN_MACRO_CONCAT_INNER(a, b)

// Assigns the value of `expr` (an absl::StatusOr) to `lhs`, or returns its
// status. `lhs` may declare a variable.
#define COXSWAIN_ASSIGN_OR_RETURN(lhs, expr) \
  COXSWAIN_ASSIGN_OR_RETURN_INNER(           \
      COXSWAIN_MACRO_CONCAT(coxswain_or_, __LINE__), lhs, expr)
#define COXSWAIN_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return tmp.status();                   \
  lhs = std::move(tmp).value()

#endif  // COXSWAIN_BASE_STATUS_MACROS_H_
