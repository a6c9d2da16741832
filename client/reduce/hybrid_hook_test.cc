#include "client/reduce/hybrid_hook.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "client/reduce/reducer_test_support.h"
#include "gmock/gmock.h"

namespace coxswain::hybrid_hook_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Each as "name[shape] from the parameter's element on".
std::vector<std::string> Cut(const std::vector<int64_t>& shape, int64_t begin,
                             int64_t end) {
  ParameterSpec parameter;
  parameter.name = "w";
  parameter.shape = shape;
  Bucket bucket;
  bucket.gradients = {{0, 0, parameter.count()}};
  bucket.data.count = parameter.count();
  std::vector<std::string> texts;
  for (const HookPiece& piece : CutForHook({parameter}, bucket, begin, end)) {
    EXPECT_EQ(piece.parameter, "w");
    EXPECT_EQ(piece.spec.count(), piece.end - piece.begin);
    texts.push_back(absl::StrCat(piece.spec.name, " ",
                                 absl::StrJoin(piece.spec.shape, "x"), " at ",
                                 piece.begin));
  }
  return texts;
}

TEST(CutForHookTest, MatricesAreCutIntoWholeRowsAndWhatIsLeft) {
  EXPECT_THAT(Cut({4, 10}, 0, 40), ElementsAre("w 4x10 at 0"));
  EXPECT_THAT(Cut({4, 10}, 10, 30), ElementsAre("w[10:30] 2x10 at 10"));
  EXPECT_THAT(
      Cut({4, 10}, 3, 37),
      ElementsAre("w[3:10] 7 at 3", "w[10:30] 2x10 at 10", "w[30:37] 7 at 30"));
  EXPECT_THAT(Cut({4, 10}, 0, 25),
              ElementsAre("w[0:20] 2x10 at 0", "w[20:25] 5 at 20"));
  EXPECT_THAT(Cut({4, 10}, 12, 18), ElementsAre("w[12:18] 6 at 12"));
  EXPECT_THAT(Cut({4, 10}, 15, 25), ElementsAre("w[15:25] 10 at 15"))
      << "no whole row";
  EXPECT_THAT(Cut({4, 5, 2}, 10, 30), ElementsAre("w[10:30] 2x5x2 at 10"));
  EXPECT_THAT(Cut({40}, 0, 16), ElementsAre("w[0:16] 16 at 0"));
  EXPECT_THAT(Cut({}, 0, 1), ElementsAre("w  at 0"));
  EXPECT_THAT(Cut({4, 10}, 20, 20), IsEmpty());
  EXPECT_THAT(Cut({0, 10}, 0, 0), IsEmpty());
}

// Slices of a bucket hold each of its elements once.
TEST(CutForHookTest, PiecesCoverTheBucket) {
  std::vector<ParameterSpec> parameters(4);
  const std::vector<std::vector<int64_t>> shapes = {
      {7, 5}, {33}, {0}, {3, 4, 5}};
  Bucket bucket;
  for (size_t i = 0; i < shapes.size(); ++i) {
    parameters[i].name = absl::StrCat("p", i);
    parameters[i].shape = shapes[i];
    bucket.gradients.push_back(
        {static_cast<int>(i), bucket.data.count, parameters[i].count()});
    bucket.data.count += parameters[i].count();
  }
  for (int64_t step = 1; step <= bucket.data.count; ++step) {
    int64_t covered = 0;
    for (int64_t begin = 0; begin < bucket.data.count; begin += step) {
      const int64_t end = std::min(begin + step, bucket.data.count);
      int64_t here = 0;
      for (const auto& piece : CutForHook(parameters, bucket, begin, end)) {
        here += piece.end - piece.begin;
      }
      EXPECT_EQ(here, end - begin);
      covered += here;
    }
    EXPECT_EQ(covered, bucket.data.count);
  }
}

ReducerOptions Hybrid(Communicator* shard, Communicator* replicas) {
  ReducerOptions options;
  options.slices = true;
  options.timeout = kSoon;
  options.hybrid = {shard, replicas};
  return options;
}

TEST(HybridHookTest, OptionsThatDoNotFitAreRefused) {
  AverageHook hook;
  LoopbackCommunicator shard, replicas, data;
  ReducerOptions options = Hybrid(&shard, &replicas);
  options.slices = false;
  EXPECT_THAT(Reducer::Create(options, Parameters(1), &hook, &data),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("needs slices, and both communicators")));
  EXPECT_THAT(
      Reducer::Create(Hybrid(&shard, nullptr), Parameters(1), &hook, &data),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("needs slices, and both communicators")));
  EXPECT_OK(
      Reducer::Create(Hybrid(&shard, &replicas), Parameters(1), &hook, &data));
}

// Rank 1 of dp=2,shard=1 that takes one group for the other.
TEST(HybridHookTest, GroupsInTheWrongPlacesAreRefused) {
  AverageHook hook;
  LoopbackCommunicator alone;
  const auto world = InProcessWorld::Create(4, kSoon);
  const auto pair = InProcessWorld::Create(2, kSoon);
  const auto data = world->MakeRank(1);
  const auto one = pair->MakeRank(1);
  EXPECT_THAT(
      Reducer::Create(Hybrid(one.get(), &alone), Parameters(1), &hook,
                      data.get()),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("rank 1 of 4 is rank 1 of 2 in hybrid.shard and 0 "
                         "of 1 in hybrid.replicas")));
  const auto two = InProcessWorld::Create(2, kSoon)->MakeRank(0);
  // As rank 1 of dp=2,shard=2, its places are 0 and 1, and not 1 and 0.
  EXPECT_THAT(
      Reducer::Create(Hybrid(two.get(), one.get()), Parameters(1), &hook,
                      data.get()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dp=2,shard=2")));
  EXPECT_OK(Reducer::Create(Hybrid(one.get(), two.get()), Parameters(1), &hook,
                            data.get()));
}

}  // namespace
}  // namespace coxswain::hybrid_hook_test
