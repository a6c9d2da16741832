#include "base/exception_status.h"

#include <new>
#include <stdexcept>

#include "absl/status/statusor.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

TEST(ExceptionStatusTest, WhatIsReturnedStays) {
  EXPECT_OK(WithoutExceptions([] { return absl::OkStatus(); }));
  EXPECT_THAT(WithoutExceptions([] { return absl::AbortedError("lost"); }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("lost")));
  const absl::StatusOr<int> three =
      WithoutExceptions([]() -> absl::StatusOr<int> { return 3; });
  ASSERT_OK(three);
  EXPECT_EQ(*three, 3);
}

TEST(ExceptionStatusTest, AnExceptionIsAnError) {
  const auto status_of = [](auto thrown) {
    return WithoutExceptions([&]() -> absl::Status { throw thrown; });
  };
  EXPECT_THAT(status_of(std::runtime_error("no tensor")),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no tensor")));
  EXPECT_THAT(status_of(std::bad_alloc()),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("bad_alloc")));
  EXPECT_THAT(status_of(7),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("other than")));
}

}  // namespace
}  // namespace coxswain
