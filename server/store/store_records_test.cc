#include "server/store/store_records.h"

#include <limits>
#include <string>

#include "base/status_matchers.h"
#include "proto/state.pb.h"
#include "server/state/record.h"

namespace coxswain::server {
namespace {

StoreAnswer SomeAnswer() {
  StoreAnswer answer;
  answer.number = std::numeric_limits<int64_t>::min();
  answer.compare_set = {std::string("\0\xff\xc3(", 4), true};
  return answer;
}
const StoreRequestKey kRequest = {'c', ~uint64_t{0}, uint64_t{1} << 63};

TEST(StoreRecordsTest, AnAnswerIsReadAsItWasWritten) {
  const std::string key = StoreAnswerRecord(~uint64_t{0});
  const std::string value = EncodeAnswer(kRequest, SomeAnswer());
  ASSERT_OK_AND_ASSIGN(const RememberedAnswer read, DecodeAnswer(key, value));
  EXPECT_EQ(read.sequence, ~uint64_t{0});
  EXPECT_EQ(read.request, kRequest);
  EXPECT_EQ(read.answer.number, SomeAnswer().number);
  EXPECT_EQ(read.answer.compare_set.value, SomeAnswer().compare_set.value);
  EXPECT_TRUE(read.answer.compare_set.swapped);
  EXPECT_OK(CheckStoreRecord(key, value));
  EXPECT_OK(CheckStoreRecord("kkey", "\xff"));
}

TEST(StoreRecordsTest, WhatIsCutOffOrIsNoAnswerIsRefused) {
  const auto refused = StatusIs(absl::StatusCode::kDataLoss, testing::_);
  const std::string key = StoreAnswerRecord(1);
  const std::string value = EncodeAnswer(kRequest, SomeAnswer());
  for (size_t size = 0; size < value.size(); ++size) {
    EXPECT_THAT(DecodeAnswer(key, value.substr(0, size)), refused) << size;
  }
  EXPECT_THAT(DecodeAnswer(key.substr(0, 9), value), refused);
  state::v1::StoreAnswer proto;
  ASSERT_TRUE(ParseRecord(value, &proto));
  proto.set_operation('c' + 256);
  EXPECT_THAT(DecodeAnswer(key, SerializeRecord(proto)), refused);
  for (const char* other : {"", "k", "x"}) {
    EXPECT_THAT(CheckStoreRecord(other, value), refused) << other;
  }
}

}  // namespace
}  // namespace coxswain::server
