#include "gtest/gtest.h"
#include "tests/scenarios/join_mismatch.h"

namespace coxswain {
namespace {

TEST(DifferentParameterDtypeTest, EveryRankIsToldWhichParametersAndWhose) {
  ExpectToldEverywhere(
      RunDifferently({"--dtype", "float32"}, {"--dtype", "float64"}),
      {"parameter 0: layer1.weight float32[48,64] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer1.weight float64[48,64] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)",
       "parameter 1: layer1.bias float32[48] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer1.bias float64[48] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)",
       "parameter 2: layer2.weight float32[32,48] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer2.weight float64[32,48] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)",
       "parameter 3: layer2.bias float32[32] on rank 0 (bow/0), rank 1 "
       "(bow/1); layer2.bias float64[32] on rank 2 (stroke/0), rank 3 "
       "(stroke/1)"});
}

}  // namespace
}  // namespace coxswain
