#include "client/comm/collective_header.h"

#include <vector>

#include "base/status_matchers.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

CollectiveHeader Reduction(int64_t count) {
  Span span;
  span.count = count;
  return HeaderOf(CollectiveKind::kAllReduce, span);
}

std::vector<RankHeader> OnRanks(const std::vector<CollectiveHeader>& headers) {
  std::vector<RankHeader> result;
  for (const CollectiveHeader& header : headers) {
    result.push_back({static_cast<int>(result.size()), header});
  }
  return result;
}

TEST(CollectiveHeaderTest, TravelsInTheDocumentedBytes) {
  CollectiveHeader header;
  header.kind = CollectiveKind::kReduceScatter;
  header.refused = true;
  header.dtype = DType::kBFloat16;
  header.op = ElementOp::kMax;
  header.root = 0x01020304;
  header.count = 0x1112131415161718;
  header.sequence = 0x2122232425262728;
  const CollectiveHeaderBytes expected = {
      1,    4,    1,    3,    2,    0,    0,    0,    0x04, 0x03, 0x02,
      0x01, 0,    0,    0,    0,    0x18, 0x17, 0x16, 0x15, 0x14, 0x13,
      0x12, 0x11, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21};
  EXPECT_EQ(Encode(header), expected);
  const auto decoded = DecodeCollectiveHeader(expected);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_TRUE(*decoded == header);
}

TEST(CollectiveHeaderTest, BytesThatAreNoHeaderAreNotRead) {
  const CollectiveHeaderBytes good = Encode(Reduction(5));
  ASSERT_TRUE(DecodeCollectiveHeader(good).has_value());
  // Version, kind, refused, type, reduction, padding, count's sign.
  for (const size_t at : {0, 1, 2, 3, 4, 5, 7, 12, 15, 23}) {
    for (const char value : {'\x7f', '\xff'}) {
      CollectiveHeaderBytes bad = good;
      bad[at] = value;
      if (at == 23 && value == '\x7f') continue;  // a large count
      EXPECT_FALSE(DecodeCollectiveHeader(bad).has_value()) << at;
    }
  }
  EXPECT_FALSE(DecodeCollectiveHeader(CollectiveHeaderBytes{}).has_value());
}

TEST(CollectiveHeaderTest, EqualHeadersAgree) {
  EXPECT_OK(CompareHeaders("g", OnRanks({Reduction(5), Reduction(5)})));
  EXPECT_OK(CompareHeaders("g", OnRanks({Reduction(5)})));
}

TEST(CollectiveHeaderTest, EveryFieldCounts) {
  const auto differ = [](void (*change)(CollectiveHeader*)) {
    CollectiveHeader other = Reduction(5);
    change(&other);
    return CompareHeaders("g", OnRanks({Reduction(5), other}));
  };
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  EXPECT_THAT(
      differ([](CollectiveHeader* h) { h->kind = CollectiveKind::kAllToAll; }),
      refused);
  EXPECT_THAT(differ([](CollectiveHeader* h) { h->dtype = DType::kInt8; }),
              refused);
  EXPECT_THAT(differ([](CollectiveHeader* h) { h->op = ElementOp::kMin; }),
              refused);
  EXPECT_THAT(differ([](CollectiveHeader* h) { h->root = 1; }), refused);
  EXPECT_THAT(differ([](CollectiveHeader* h) { h->count = 6; }), refused);
  EXPECT_THAT(differ([](CollectiveHeader* h) { h->refused = true; }), refused);
  EXPECT_THAT(differ([](CollectiveHeader* h) { h->sequence = 7; }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("after 0 others"),
                             HasSubstr("after 7 others"))));
}

TEST(CollectiveHeaderTest, NamesAllRanksAndWhatEachBegins) {
  Span span;
  span.count = 3;
  span.dtype = DType::kInt64;
  const CollectiveHeader other =
      HeaderOf(CollectiveKind::kBroadcast, span, ElementOp::kSum, 2);
  EXPECT_THAT(CompareHeaders("communicator 'x'",
                             OnRanks({Reduction(8), Reduction(8), other,
                                      Reduction(8), Reduction(9)})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the ranks of communicator 'x' begin different "
                       "collectives: ranks 0, 1, 3 all-reduce (sum) of 8 x "
                       "float32; rank 2 broadcast of 3 x int64 from rank 2; "
                       "rank 4 all-reduce (sum) of 9 x float32"));
}

TEST(CollectiveHeaderTest, ARefusedCallIsNamedEvenIfAllWere) {
  CollectiveHeader refused = Reduction(5);
  refused.refused = true;
  EXPECT_THAT(CompareHeaders("g", OnRanks({refused, refused})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("ranks 0, 1 a refused call of all-reduce")));
}

TEST(CollectiveHeaderTest, TheTextHasALimit) {
  std::vector<CollectiveHeader> headers;
  for (int i = 0; i < 1000; ++i) headers.push_back(Reduction(i / 100));
  const absl::Status status = CompareHeaders("g", OnRanks(headers));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("and 84 more"),
                                     HasSubstr("and 2 other variants"),
                                     Not(HasSubstr("of 9 x")))));
}

}  // namespace
}  // namespace coxswain
