#include "gtest/gtest.h"
#include "tests/scenarios/join_mismatch.h"

namespace coxswain {
namespace {

TEST(OffByOneAccumulationTest, NoStepIsMadeAndEveryRankIsToldWhoCountsHow) {
  ExpectToldEverywhere(
      RunDifferently({"--accumulate", "3"}, {"--accumulate", "4"}),
      {"accumulation_steps: 3 on rank 0 (bow/0), rank 1 (bow/1); 4 on rank 2 "
       "(stroke/0), rank 3 (stroke/1)"});
}

}  // namespace
}  // namespace coxswain
