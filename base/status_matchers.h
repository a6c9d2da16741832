#ifndef COXSWAIN_BASE_STATUS_MATCHERS_H_
#define COXSWAIN_BASE_STATUS_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Test-only matchers for absl::Status and absl::StatusOr.

namespace coxswain {

inline const absl::Status& ToStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

// Matches an OK Status or StatusOr.
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).ok();
}

// Matches a Status or StatusOr with this code whose message matches.
MATCHER_P2(StatusIs, code, message_matcher,
           absl::StatusCodeToString(code) + " with a message that " +
               testing::DescribeMatcher<std::string>(message_matcher)) {
  *result_listener << ToStatus(arg).ToString();
  return ToStatus(arg).code() == code &&
         testing::ExplainMatchResult(message_matcher,
                                     std::string(ToStatus(arg).message()),
                                     result_listener);
}

}  // namespace coxswain

#define EXPECT_OK(expr) EXPECT_THAT((expr), ::coxswain::IsOk())
#define ASSERT_OK(expr) ASSERT_THAT((expr), ::coxswain::IsOk())

// Assigns the value of a StatusOr, or fails the test.
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_INNER(ASSERT_OK_CONCAT(assert_or_, __LINE__), lhs, expr)
#define ASSERT_OK_CONCAT_INNER(a, b) a##b
#define ASSERT_OK_CONCAT(a, b) ASSERT_OK_CONCAT_INNER(a, b)
#define ASSERT_OK_AND_ASSIGN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  ASSERT_TRUE(tmp.ok()) << tmp.status();           \
  lhs = std::move(tmp).value()

#endif  // COXSWAIN_BASE_STATUS_MATCHERS_H_
