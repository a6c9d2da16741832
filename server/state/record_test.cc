#include "server/state/record.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/state.pb.h"
#include "proto/types.pb.h"

namespace coxswain::server {
namespace {

TEST(RecordTest, EqualMessagesAreEqualBytes) {
  v1::Plan up;
  v1::Plan down;
  for (int i = 0; i < 20; ++i) {
    (*up.mutable_terms())[std::to_string(i)] = "x";
    (*down.mutable_terms())[std::to_string(19 - i)] = "x";
  }
  EXPECT_EQ(SerializeRecord(up), SerializeRecord(down));
  v1::Plan read;
  ASSERT_TRUE(ParseRecord(SerializeRecord(up), &read));
  EXPECT_EQ(read.terms_size(), 20);
}

TEST(RecordTest, AnyBytesAreATextAndNoneAreAnEmptyMessage) {
  const std::string bytes("\0\xff\xc3(", 4);
  state::v1::QuarantineNote note;
  note.set_job(bytes);
  state::v1::QuarantineNote read;
  ASSERT_TRUE(ParseRecord(SerializeRecord(note), &read));
  EXPECT_EQ(read.job(), bytes);
  EXPECT_EQ(SerializeRecord(state::v1::QuarantineNote()), "");
  EXPECT_TRUE(ParseRecord("", &read));
  EXPECT_EQ(read.job(), "");
}

TEST(RecordTest, WhatIsCutOrFollowedByMoreIsNoMessage) {
  state::v1::GroupRanks group;
  for (int rank = 0; rank < 300; ++rank) group.add_ranks(rank);
  const std::string bytes = SerializeRecord(group);
  for (size_t size = 1; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseRecord(bytes.substr(0, size), &group)) << size;
  }
  EXPECT_FALSE(ParseRecord(bytes + std::string(1, '\0'), &group));
}

TEST(NumberedKeyTest, KeysSortAsTheirNumbersAndAreReadBack) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  std::string before;
  for (const uint64_t number : {uint64_t{0}, uint64_t{9}, uint64_t{10},
                                uint64_t{255}, uint64_t{256}, kMax}) {
    const std::string key = NumberedKey('b', number);
    EXPECT_LT(before, key);
    EXPECT_EQ(NumberOfKey(key), number);
    before = key;
  }
  EXPECT_EQ(NumberedKey('a', 0x1f), "a000000000000001f");
}

TEST(NumberedKeyTest, OtherKeysHaveNoNumber) {
  for (const char* key :
       {"", "a", "a000000000000001", "a00000000000000010", "a000000000000001F",
        "a00000000000000 1", "a-00000000000001f", "a0x0000000000001f"}) {
    EXPECT_FALSE(NumberOfKey(key).has_value()) << key;
  }
}

}  // namespace
}  // namespace coxswain::server
