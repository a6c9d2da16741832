#ifndef COXSWAIN_CAPI_ERRORS_H_
#define COXSWAIN_CAPI_ERRORS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/exception_status.h"
#include "base/status_macros.h"
#include "capi/coxswain.h"

// How a function of the C interface begins and ends: its arguments are checked,
// and its result becomes a code and the thread's last error.
namespace coxswain::capi {

// The end of a function: a status, or CX_AGAIN.
struct Answer {
  // Implicit, so that the macros for statuses work.
  Answer(absl::Status status_in)  // NOLINT(runtime/explicit)
      : status(std::move(status_in)) {}
  static Answer Again() {
    Answer answer{absl::OkStatus()};
    answer.again = true;
    return answer;
  }

  absl::Status status;
  bool again = false;
};

// Returns the code of an answer, and keeps an error as the thread's last one.
cx_code Report(const Answer& answer) noexcept;

// Runs the body of a function: exceptions, which are those of the standard
// library and of callbacks, become CX_INTERNAL.
template <typename Body>
cx_code Guarded(const Body& body) noexcept {
  try {
    return Report(body());
  } catch (...) {
    try {
      return Report(StatusOfException());
    } catch (...) {
      return CX_INTERNAL;
    }
  }
}

// The same of a function that may wait: whatever its end, `*call` is 0 unless
// it is CX_AGAIN.
template <typename Body>
cx_code Guarded(cx_call* call, const Body& body) noexcept {
  if (call != nullptr) *call = 0;
  return Guarded(body);
}

// ---- arguments ----

absl::Status InvalidArgument(absl::string_view argument,
                             absl::string_view problem);

inline absl::Status CheckPresent(const void* place,
                                 absl::string_view argument) {
  return place != nullptr ? absl::OkStatus()
                          : InvalidArgument(argument, "is NULL");
}

// Fails if a time to wait is below 0.
absl::Status CheckTimeout(int64_t timeout_ms);

// Returns a text; NULL is an empty one. Fails if it is not UTF-8.
absl::StatusOr<std::string> TextOf(const char* text,
                                   absl::string_view argument);

// Fails if this is not the size of a struct of any version.
absl::Status CheckSize(size_t size, absl::string_view argument);
// Fails if bytes that this version does not know are not zero.
absl::Status CheckUnknown(const void* given, size_t given_size,
                          size_t known_size, absl::string_view argument);

// Returns a caller's struct, whatever its version: fields that it lacks have
// their defaults.
template <typename T>
absl::StatusOr<T> ReadStruct(const T* given, absl::string_view argument) {
  COXSWAIN_RETURN_IF_ERROR(CheckPresent(given, argument));
  COXSWAIN_RETURN_IF_ERROR(CheckSize(given->size, argument));
  COXSWAIN_RETURN_IF_ERROR(
      CheckUnknown(given, given->size, sizeof(T), argument));
  T known{};
  std::memcpy(&known, given, std::min(given->size, sizeof(T)));
  return known;
}

// A caller's struct for results, whatever its version. The check comes first,
// so that a call with a wrong one has no effect.
template <typename T>
class Result {
 public:
  static absl::StatusOr<Result> Of(T* place, absl::string_view argument) {
    COXSWAIN_RETURN_IF_ERROR(CheckPresent(place, argument));
    COXSWAIN_RETURN_IF_ERROR(CheckSize(place->size, argument));
    return Result(place);
  }

  // Fills the fields that the caller knows, and those that only the caller
  // knows with zeros.
  void Fill(T value) const {
    value.size = size_;
    std::memset(static_cast<void*>(place_), 0, size_);
    std::memcpy(place_, &value, std::min(size_, sizeof(T)));
  }

 private:
  explicit Result(T* place) : place_(place), size_(place->size) {}

  T* place_;
  size_t size_;
};

}  // namespace coxswain::capi

#endif  // COXSWAIN_CAPI_ERRORS_H_
