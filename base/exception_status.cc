#include "base/exception_status.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace coxswain {

absl::Status StatusOfException() {
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& exception) {
    return absl::InternalError(
        absl::StrCat("an exception was thrown: ", exception.what()));
  } catch (...) {
    return absl::InternalError("something other than an exception was thrown");
  }
}

}  // namespace coxswain
