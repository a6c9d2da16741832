#include "gtest/gtest.h"
#include "tests/scenarios/join_mismatch.h"

namespace coxswain {
namespace {

TEST(DifferentHookOptionsTest, EveryRankIsToldWhoHasWhich) {
  ExpectToldEverywhere(
      RunDifferently({"--hook", "powersgd(rank=4)"},
                     {"--hook", "powersgd(rank=2)"}),
      {"hook: powersgd(rank=4) on rank 0 (bow/0), rank 1 (bow/1); "
       "powersgd(rank=2) on rank 2 (stroke/0), rank 3 (stroke/1)"});
}

TEST(DifferentHookOptionsTest, AnOptionOfAnInnerHookCountsToo) {
  ExpectToldEverywhere(
      RunDifferently({"--hook", "fp16(powersgd(rank=4, start_step=10))"},
                     {"--hook", "fp16(powersgd(rank=4, start_step=11))"}),
      {"hook: fp16(powersgd(rank=4,start_step=10)) on rank 0 (bow/0), "
       "rank 1 (bow/1); fp16(powersgd(rank=4,start_step=11)) on rank 2 "
       "(stroke/0), rank 3 (stroke/1)"});
}

// Its ranks are not known then.
TEST(DifferentHookOptionsTest, NobodyWaitsForALauncherThatDoesNotCome) {
  ExpectToldEverywhere(RunDifferently({"--hook", "bf16"}, {"--hook", "fp16"},
                                      /*nodes=*/3),
                       {"hook: bf16 on bow/0, bow/1; fp16 on stroke/0, "
                        "stroke/1"});
}

}  // namespace
}  // namespace coxswain
