#include "hooks/low_rank/low_rank_state.h"

#include <algorithm>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::ElementsAre;

std::vector<double> Normal(uint64_t stream, int64_t count) {
  const CounterRandom random(5, stream);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(random.Normal(static_cast<uint64_t>(i)));
  }
  return values;
}

// Any piece, at any offset in the matrix, holds the elements of the whole.
TEST(LowRankStateTest, ErrorIsReadPieceByPiece) {
  const int64_t n = 5, m = 4, r = 2;
  const auto x = Normal(1, n * m), p = Normal(2, n * r), q = Normal(3, m * r);
  std::vector<double> whole;
  for (int64_t i = 0; i < n * m; ++i) {
    double value = x[static_cast<size_t>(i)];
    for (int64_t k = 0; k < r; ++k) {
      value -= p[static_cast<size_t>(k * n + i / m)] *
               q[static_cast<size_t>(k * m + i % m)];
    }
    whole.push_back(value);
  }
  for (int64_t offset = 0; offset < n * m; ++offset) {
    const ErrorView<double> view{
        x.data(), {p.data(), q.data(), r}, n, m, offset};
    for (int64_t begin = 0; offset + begin < n * m; ++begin) {
      for (int64_t length = 0; offset + begin + length <= n * m; ++length) {
        std::vector<double> piece(static_cast<size_t>(length) + 1, 77);
        ReadError(view, begin, length, piece.data());
        for (int64_t i = 0; i < length; ++i) {
          EXPECT_NEAR(piece[static_cast<size_t>(i)],
                      whole[static_cast<size_t>(offset + begin + i)], 1e-14);
        }
        EXPECT_EQ(piece.back(), 77);
      }
    }
  }
}

TEST(LowRankStateTest, ErrorWithoutFactorsIsTheMatrixAndWithoutMatrixZero) {
  const std::vector<float> x = {1, 2, 3};
  std::vector<double> out(2, 77);
  ReadError(ErrorView<float>{x.data(), {}, 3, 1, 0}, 1, 2, out.data());
  EXPECT_THAT(out, ElementsAre(2, 3));
  ReadError(ErrorView<float>(), 0, 2, out.data());
  EXPECT_THAT(out, ElementsAre(0, 0));
}

// X and the factors are finite, their product is not.
TEST(LowRankStateTest, OverflownErrorsAreDropped) {
  LowRankTensor<float> tensor;
  tensor.n = tensor.m = 2;
  tensor.r = 1;
  tensor.count = 3;  // the last row has a gap
  tensor.now.has_error = true;
  tensor.now.x.Allocate(3);
  const std::vector<float> x = {3e38f, 2, 3};
  std::copy(x.begin(), x.end(), tensor.now.x.data());
  tensor.now.error_p = {-1, 1};
  tensor.now.error_q = {1, 1};
  DropOverflow(tensor);  // nothing to do
  EXPECT_EQ(tensor.now.error_p.size(), 2u);
  tensor.now.error_q = {3e38f, 1};
  DropOverflow(tensor);
  EndStepOf(tensor, /*commit=*/false);
  EXPECT_EQ(tensor.now.error_p.size(), 2u) << "as it was before the step";
  EXPECT_THAT(
      std::vector<float>(tensor.error().x.data(), tensor.error().x.data() + 3),
      ElementsAre(0, 3, 3 - 3e38f))
      << "for the next step";
  EndStepOf(tensor, /*commit=*/true);
  std::vector<double> error(3);
  ReadError(ErrorViewOf(tensor), 0, 3, error.data());
  EXPECT_THAT(error, ElementsAre(0, 3, 3 - 3e38f));
}

// The third overflow on end drops the error for the steps to come; what is
// saved after a rollback is that of before.
TEST(LowRankStateTest, ARolledBackOverflowLeavesTheCommittedError) {
  LowRankTensor<float> tensor;
  tensor.n = tensor.m = tensor.count = 1;
  tensor.now.has_error = true;
  tensor.now.x.Allocate(1);
  tensor.now.x.data()[0] = 5;
  for (int i = 0; i < 3; ++i) {
    DropOverflow(tensor);
    EndStepOf(tensor, /*commit=*/false);
    ASSERT_TRUE(tensor.now.has_error);
    EXPECT_EQ(tensor.now.x.data()[0], 5);
    EXPECT_EQ(tensor.error().has_error, i < 2);
  }
  tensor.next.has_error = true;
  tensor.next.x.Allocate(1);
  tensor.next.x.data()[0] = 7;
  tensor.staged = true;
  EndStepOf(tensor, /*commit=*/true);
  EXPECT_EQ(tensor.now.x.data()[0], 7);
  EXPECT_EQ(&tensor.error(), &tensor.now);
}

TEST(LowRankStateTest, ShardsAreRunsOfAboutEqualBytes) {
  std::vector<ParameterSpec> specs(5);
  for (ParameterSpec& spec : specs) spec.shape = {10};
  specs[4].shape = {40};
  specs[0].dtype = DType::kFloat64;  // counts twice
  specs[0].shape = {5};
  std::vector<const ParameterSpec*> parameters;
  for (const ParameterSpec& spec : specs) parameters.push_back(&spec);
  EXPECT_THAT(ShardOwners(parameters, 1), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(ShardOwners(parameters, 2), ElementsAre(0, 0, 0, 0, 1));
  EXPECT_THAT(ShardOwners(parameters, 4), ElementsAre(0, 0, 1, 1, 3));
  EXPECT_TRUE(ShardOwners({}, 3).empty());
}

}  // namespace
}  // namespace coxswain
