#include "client/reduce/hook_state.h"

#include <cstring>

#include "base/crc32c.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

HookState Example() {
  HookState state;
  state.spec = "powersgd(rank=4)";
  state.step = 1234567890123;
  state.options = {{"rank", "4"}, {"seed", "0"}};
  state.tensors.push_back(
      {"error", "fc.weight", {2, 3}, DType::kFloat32, std::string(24, 'e')});
  state.tensors.push_back(
      {"q", "fc.weight", {1, 3}, DType::kFloat64, std::string(24, '\0')});
  state.tensors.push_back({"scalar", "", {}, DType::kInt8, "x"});
  return state;
}

void ExpectEqual(const HookState& a, const HookState& b) {
  EXPECT_EQ(a.spec, b.spec);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.options, b.options);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].kind, b.tensors[i].kind);
    EXPECT_EQ(a.tensors[i].parameter, b.tensors[i].parameter);
    EXPECT_EQ(a.tensors[i].shape, b.tensors[i].shape);
    EXPECT_EQ(a.tensors[i].dtype, b.tensors[i].dtype);
    EXPECT_EQ(a.tensors[i].data, b.tensors[i].data);
  }
}

// Returns the bytes with a right checksum.
std::string Sealed(std::string bytes) {
  const uint32_t checksum = Crc32c(bytes);
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return bytes;
}

std::string Unsealed(const HookState& state) {
  const std::string bytes = SerializeHookState(state);
  return bytes.substr(0, bytes.size() - 4);
}

TEST(HookStateTest, ComesBackFromItsBytes) {
  ASSERT_OK_AND_ASSIGN(const HookState read,
                       ParseHookState(SerializeHookState(Example())));
  ExpectEqual(read, Example());
  ASSERT_OK_AND_ASSIGN(const HookState empty,
                       ParseHookState(SerializeHookState(HookState())));
  ExpectEqual(empty, HookState());
}

// The format must not change unnoticed: files outlive programs.
TEST(HookStateTest, BytesAreThoseOfTheDocumentedFormat) {
  HookState state;
  state.spec = "ab";
  state.step = 3;
  state.options = {{"k", "v"}};
  state.tensors.push_back({"q", "w", {2}, DType::kUInt8, "xy"});
  const std::string body(
      "CXHS\1\0\0\0"
      "\2\0\0\0ab"
      "\3\0\0\0\0\0\0\0"
      "\1\0\0\0"
      "\1\0\0\0k\1\0\0\0v"
      "\1\0\0\0"
      "\1\0\0\0q\1\0\0\0w"
      "\5\0\0\0uint8"
      "\1\0\0\0\2\0\0\0\0\0\0\0"
      "\2\0\0\0\0\0\0\0xy",
      81);
  EXPECT_EQ(Unsealed(state), body);
  EXPECT_EQ(SerializeHookState(state), Sealed(body));
}

TEST(HookStateTest, EveryTruncationAndEveryFlippedBitIsDataLoss) {
  const std::string bytes = SerializeHookState(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_THAT(ParseHookState(bytes.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
    std::string flipped = bytes;
    flipped[size] = static_cast<char>(flipped[size] ^ 0x10);
    ASSERT_THAT(ParseHookState(flipped),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
  }
}

// With a right checksum it is the parser that has to notice.
TEST(HookStateTest, EverySealedTruncationIsDataLoss) {
  const std::string bytes = Unsealed(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_THAT(ParseHookState(Sealed(bytes.substr(0, size))),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("")));
  }
  EXPECT_THAT(
      ParseHookState(Sealed(bytes + "x")),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("after its end")));
}

TEST(HookStateTest, FalseShapesAreDataLoss) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{5}, {-1, -6}, {int64_t{1} << 62, 16, 6}}) {
    HookState state;
    state.tensors.push_back({"q", "w", shape, DType::kUInt8, "sixsix"});
    EXPECT_THAT(ParseHookState(SerializeHookState(state)),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("shape")));
  }
}

TEST(HookStateTest, AnotherVersionIsNamed) {
  std::string bytes = Unsealed(Example());
  bytes[4] = 9;
  EXPECT_THAT(ParseHookState(Sealed(bytes)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("version 9")));
}

TEST(MergeHookStatesTest, ShardsBecomeOne) {
  HookState first = Example();
  HookState second = Example();
  first.tensors.pop_back();
  second.options.clear();
  second.tensors.erase(second.tensors.begin(), second.tensors.begin() + 2);
  ASSERT_OK_AND_ASSIGN(const HookState merged,
                       MergeHookStates({first, second}));
  ExpectEqual(merged, Example());
}

TEST(MergeHookStatesTest, WhatDoesNotBelongTogetherIsRefused) {
  const auto merge = [](HookState other) {
    HookState example = Example();
    example.tensors.clear();
    return MergeHookStates({example, std::move(other)}).status();
  };
  HookState other = Example();
  other.step = 7;
  EXPECT_THAT(merge(other),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("7")));
  other = Example();
  other.spec = "allreduce";
  EXPECT_THAT(merge(other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("allreduce")));
  other = Example();
  other.options["rank"] = "8";
  EXPECT_THAT(merge(other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("rank is '4'")));
  EXPECT_THAT(
      MergeHookStates({Example(), Example()}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("fc.weight")));
  EXPECT_THAT(MergeHookStates({}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("")));
}

}  // namespace
}  // namespace coxswain
