#include "client/pipeline/message_header.h"

#include <limits>
#include <memory>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

Activation TensorOf(std::vector<int64_t> dims, DType dtype = DType::kFloat32) {
  // The header does not look at its memory.
  return {dtype, std::move(dims), nullptr};
}

TEST(MessageHeaderTest, ComesBackAsItWas) {
  const Activations tensors = {TensorOf({2, 3}),
                               {DType::kInt64, {5}, nullptr, /*absent=*/true},
                               TensorOf({}),
                               TensorOf({0, 7}, DType::kBFloat16)};
  ASSERT_OK_AND_ASSIGN(const MessageHeader header,
                       MessageHeader::Of(7, tensors, 1000));
  ASSERT_OK_AND_ASSIGN(const MessageHeader back,
                       MessageHeader::Decode(header.Encode(), 1000));
  EXPECT_EQ(back.micro_batch, 7);
  ASSERT_EQ(back.tensors.size(), 4u);
  EXPECT_EQ(back.tensors[0].dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(back.tensors[0].bytes, 24);
  EXPECT_FALSE(back.tensors[1].present);
  EXPECT_EQ(back.tensors[1].bytes, 0);
  EXPECT_EQ(back.tensors[2].bytes, 4);
  EXPECT_EQ(back.tensors[3].dtype, DType::kBFloat16);
  EXPECT_EQ(back.tensors[3].bytes, 0);
}

TEST(MessageHeaderTest, WhatAMessageCannotHaveIsRefused) {
  const auto refused = [](const Activations& tensors, const char* why) {
    EXPECT_THAT(MessageHeader::Of(0, tensors, 1000),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  refused(Activations(13, TensorOf({1})), "13 tensors on: 12 is the most");
  refused({TensorOf({1, 1, 1, 1, 1, 1, 1, 1, 1})}, "9 dimensions on: 8");
  refused({TensorOf({-1})}, "dimension of -1");
  refused({TensorOf({251})}, "more than 1000 bytes");
  refused({TensorOf({200}), TensorOf({51})}, "more than 1000 bytes");
  refused({TensorOf({int64_t{1} << 62, 4})}, "more than 1000 bytes");
  refused({TensorOf({int64_t{1} << 62, int64_t{1} << 62, 0})},
          "more than 1000 bytes");
  EXPECT_OK(MessageHeader::Of(0, {TensorOf({200}), TensorOf({50})}, 1000));
}

TEST(MessageHeaderTest, WhatABrokenPeerSendsIsRefused) {
  ASSERT_OK_AND_ASSIGN(const MessageHeader header,
                       MessageHeader::Of(0, {TensorOf({2, 3})}, 1000));
  const HeaderBytes good = header.Encode();
  const auto refused = [&good](size_t at, char byte, absl::StatusCode code) {
    HeaderBytes bytes = good;
    bytes[at] = byte;
    EXPECT_THAT(MessageHeader::Decode(bytes, 1000),
                StatusIs(code, HasSubstr("")))
        << "byte " << at;
  };
  refused(0, 0, absl::StatusCode::kInternal);   // no header
  refused(7, -1, absl::StatusCode::kInternal);  // a negative micro-batch
  refused(8, 13, absl::StatusCode::kInternal);  // too many tensors
  refused(11, 1, absl::StatusCode::kInternal);
  refused(12, 2, absl::StatusCode::kInternal);   // neither present nor absent
  refused(12, 0, absl::StatusCode::kInternal);   // absent, with dimensions
  refused(13, 9, absl::StatusCode::kInternal);   // no type
  refused(14, 9, absl::StatusCode::kInternal);   // too many dimensions
  refused(27, -1, absl::StatusCode::kInternal);  // a negative one
  refused(26, 1, absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace coxswain
