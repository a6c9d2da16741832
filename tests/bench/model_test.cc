#include "tests/bench/model.h"

#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain::bench {
namespace {

ParameterSpec Vector(const std::string& name, int64_t extent) {
  ParameterSpec parameter;
  parameter.name = name;
  parameter.shape = {extent};
  return parameter;
}

TEST(ModelTest, AveragesAllBucketsOfAllRanks) {
  // The last parameter fills the first bucket, of 1 MiB.
  auto model = Model::Create(
      "allreduce", {Vector("a", 5), Vector("b", 3), Vector("c", 1 << 18)}, 2);
  ASSERT_OK(model);
  ASSERT_EQ((*model)->buckets().size(), 2u);
  std::vector<float> big[2] = {std::vector<float>(1 << 18, 1),
                               std::vector<float>(1 << 18, 2)};
  std::vector<float> small[2] = {std::vector<float>(8, 3),
                                 std::vector<float>(8, 5)};
  for (int rank = 0; rank < 2; ++rank) {
    (*model)->SetMemory(rank, 0, big[rank].data());
    (*model)->SetMemory(rank, 1, small[rank].data());
  }
  ASSERT_OK((*model)->Step(/*commit=*/true));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(big[rank], std::vector<float>(1 << 18, 1.5f));
    EXPECT_EQ(small[rank], std::vector<float>(8, 4));
  }
  EXPECT_EQ((*model)->payload_bytes(), 4 * ((1 << 18) + 8));
}

TEST(ModelTest, OnlyCommittedStepsCount) {
  ParameterSpec parameter;
  parameter.name = "matrix";
  parameter.shape = {32, 32};
  auto model = Model::Create("powersgd(start_step=2)", {parameter}, 1);
  ASSERT_OK(model);
  std::vector<float> memory(32 * 32, 1);
  (*model)->SetMemory(0, 0, memory.data());
  const auto bytes_of_a_step = [&](bool commit) {
    const int64_t before = (*model)->payload_bytes();
    EXPECT_OK((*model)->Step(commit));
    return (*model)->payload_bytes() - before;
  };
  const int64_t plain = bytes_of_a_step(true);
  EXPECT_EQ(bytes_of_a_step(false), plain);
  EXPECT_EQ(bytes_of_a_step(true), plain);
  EXPECT_LT(bytes_of_a_step(true), plain);
}

TEST(ModelTest, ReportsWhatIsWrongWithASpec) {
  EXPECT_FALSE(Model::Create("nothing", {Vector("a", 5)}, 1).ok());
}

}  // namespace
}  // namespace coxswain::bench
