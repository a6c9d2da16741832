#include "transport/error_detail.h"

#include "absl/strings/cord.h"
#include "base/error_detail.h"
#include "base/grpc_status.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

v1::ErrorDetail Mismatch() {
  v1::ErrorDetail detail;
  detail.mutable_schedule_mismatch()->add_odd_ranks(3);
  return detail;
}

TEST(ErrorDetailTest, IsReadAsItWasWritten) {
  const absl::Status error =
      WithDetail(absl::AbortedError("ranks differ"), Mismatch());
  EXPECT_EQ(error.message(), "ranks differ");
  EXPECT_EQ(DetailOf(error).schedule_mismatch().odd_ranks(0), 3);
}

TEST(ErrorDetailTest, TravelsOverGrpc) {
  const absl::Status error =
      WithDetail(absl::AbortedError("ranks differ"), Mismatch());
  const absl::Status received = FromGrpcStatus(ToGrpcStatus(error));
  EXPECT_EQ(DetailOf(received).schedule_mismatch().odd_ranks(0), 3);
}

TEST(ErrorDetailTest, AnErrorWithoutOneHasNoKind) {
  EXPECT_EQ(DetailOf(absl::AbortedError("plain")).kind_case(),
            v1::ErrorDetail::KIND_NOT_SET);
  EXPECT_EQ(DetailOf(absl::OkStatus()).kind_case(),
            v1::ErrorDetail::KIND_NOT_SET);
}

TEST(ErrorDetailTest, OneThatCannotBeReadHasNoKind) {
  // A whole detail, and then a field that is cut off.
  absl::Cord bytes(Mismatch().SerializeAsString());
  bytes.Append("\x12\x7f");
  absl::Status error = absl::AbortedError("cut");
  error.SetPayload(kErrorDetailUrl, bytes);
  EXPECT_EQ(DetailOf(error).kind_case(), v1::ErrorDetail::KIND_NOT_SET);
}

TEST(ErrorDetailTest, OkHasNone) {
  EXPECT_TRUE(WithDetail(absl::OkStatus(), Mismatch()).ok());
  EXPECT_EQ(DetailOf(WithDetail(absl::OkStatus(), Mismatch())).kind_case(),
            v1::ErrorDetail::KIND_NOT_SET);
}

TEST(ErrorDetailTest, GoesOverToAnotherError) {
  const absl::Status error =
      WithDetail(absl::AbortedError("ranks differ"), Mismatch());
  const absl::Status explained =
      WithDetailOf(error, absl::AbortedError("step 7: ranks differ"));
  EXPECT_EQ(explained.message(), "step 7: ranks differ");
  EXPECT_EQ(DetailOf(explained).schedule_mismatch().odd_ranks(0), 3);
}

TEST(ErrorDetailTest, AnErrorKeepsItsOwnIfTheOtherHasNone) {
  const absl::Status error =
      WithDetail(absl::AbortedError("ranks differ"), Mismatch());
  const absl::Status kept = WithDetailOf(absl::AbortedError("plain"), error);
  EXPECT_EQ(DetailOf(kept).schedule_mismatch().odd_ranks(0), 3);
}

}  // namespace
}  // namespace coxswain
