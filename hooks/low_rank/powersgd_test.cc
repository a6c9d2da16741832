#include "hooks/low_rank/powersgd.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Matrix = std::vector<std::vector<double>>;  // rows

Matrix Zero(size_t rows, size_t columns) {
  return Matrix(rows, std::vector<double>(columns, 0.0));
}

Matrix Transposed(const Matrix& a) {
  Matrix t = Zero(a[0].size(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) t[j][i] = a[i][j];
  }
  return t;
}

Matrix Times(const Matrix& a, const Matrix& b) {
  Matrix c = Zero(a.size(), b[0].size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < b.size(); ++k) {
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  return c;
}

// a + scale * b.
Matrix Plus(Matrix a, const Matrix& b, double scale) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[0].size(); ++j) a[i][j] += scale * b[i][j];
  }
  return a;
}

// Classical Gram-Schmidt by the textbook, each column against those before.
Matrix Orth(const Matrix& a) {
  Matrix columns = Transposed(a);
  for (size_t k = 0; k < columns.size(); ++k) {
    std::vector<double> rest = columns[k];
    for (size_t i = 0; i < k; ++i) {
      double along = 0;
      for (size_t j = 0; j < rest.size(); ++j) along += columns[i][j] * rest[j];
      for (size_t j = 0; j < rest.size(); ++j) rest[j] -= along * columns[i][j];
    }
    double norm = 0;
    for (const double value : rest) norm += value * value;
    for (double& value : rest) value /= std::sqrt(norm);
    columns[k] = rest;
  }
  return Transposed(columns);
}

// PowerSGD of one matrix with a GLOBAL residual, as PyTorch has it: the error
// is gradient plus error minus the reconstructed average. In exact arithmetic
// its results are those of the hook, whose residual is local.
class Emulation {
 public:
  Emulation(Matrix q, size_t ranks) : q_(std::move(q)), errors_(ranks) {}

  Matrix Step(const std::vector<Matrix>& gradients) {
    const double ranks = static_cast<double>(gradients.size());
    std::vector<Matrix> x;
    for (size_t w = 0; w < gradients.size(); ++w) {
      x.push_back(errors_[w].empty() ? gradients[w]
                                     : Plus(gradients[w], errors_[w], 1));
    }
    const Matrix basis = Orth(q_);
    Matrix p = Times(x[0], basis);
    for (size_t w = 1; w < x.size(); ++w) p = Plus(p, Times(x[w], basis), 1);
    p = Orth(p);
    q_ = Zero(q_.size(), q_[0].size());
    for (const Matrix& own : x) {
      q_ = Plus(q_, Times(Transposed(own), p), 1 / ranks);
    }
    const Matrix result = Times(p, Transposed(q_));
    for (size_t w = 0; w < x.size(); ++w) errors_[w] = Plus(x[w], result, -1);
    return result;
  }

 private:
  Matrix q_;
  std::vector<Matrix> errors_;
};

ParameterSpec Parameter(std::string name, std::vector<int64_t> shape,
                        DType dtype = DType::kFloat64) {
  ParameterSpec parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.dtype = dtype;
  return parameter;
}

Matrix AsMatrix(const std::vector<double>& values, size_t rows) {
  const size_t columns = values.size() / rows;
  Matrix matrix = Zero(rows, columns);
  for (size_t i = 0; i < values.size(); ++i) {
    matrix[i / columns][i % columns] = values[i];
  }
  return matrix;
}

// A world whose hooks have done the two plain steps.
HookWorld Started(const std::string& options,
                  const std::vector<ParameterSpec>& parameters, int size) {
  HookWorld world("powersgd(start_step=2" + options + ")", parameters, size);
  for (int64_t step = 0; step < 2; ++step) {
    std::vector<Gradients> local;
    for (int rank = 0; rank < size; ++rank) {
      local.push_back(NormalGradients(parameters, 1, rank, step));
    }
    world.Step(local);
  }
  return world;
}

std::vector<Gradients> Local(const std::vector<ParameterSpec>& parameters,
                             int size, int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(parameters, 2, rank, step));
  }
  return local;
}

Gradients Mean(const std::vector<Gradients>& local) {
  Gradients mean;
  for (const Gradients& one : local) {
    AddTo(mean, one, 1.0 / static_cast<double>(local.size()));
  }
  return mean;
}

TEST(PowerSgdTest, AgreesWithThePlainFormulasForTwentySteps) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {12, 4, 5})};
  const size_t n = 12, m = 20, r = 3;
  HookWorld world =
      Started(",rank=3,min_compression_rate=1,seed=9", parameters, 4);
  // The first Q, as its formula says: drawn column by column.
  const CounterRandom random(9, StableHash("w") ^ Mix64(2));
  Matrix q = Zero(m, r);
  for (size_t k = 0; k < r; ++k) {
    for (size_t j = 0; j < m; ++j) q[j][k] = random.Normal(k * m + j);
  }
  Emulation emulation(q, 4);
  for (int64_t step = 0; step < 20; ++step) {
    const auto local = Local(parameters, 4, step);
    std::vector<Matrix> gradients;
    for (const Gradients& one : local) gradients.push_back(AsMatrix(one[0], n));
    const Matrix got = AsMatrix(world.Step(local)[0], n);
    const Matrix expected = emulation.Step(gradients);
    EXPECT_LE(RelativeDifference(got, expected), 1e-10) << "step " << step;
  }
}

// What a step leaves out is sent later: the sum of the results stays within a
// bounded distance of the sum of the averages, so it converges relatively.
TEST(PowerSgdTest, SumOfResultsConvergesToTheSumOfAverages) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32),
      Parameter("b", {16}, DType::kFloat32)};
  HookWorld world = Started(",rank=2", parameters, 2);
  HookWorld careless = Started(",rank=2,error_feedback=false", parameters, 2);
  Gradients results, carelessly, averages;
  // A fixed part in all gradients, of full rank, and noise.
  const Gradients fixed = NormalGradients(parameters, 3, 0, 0);
  std::map<int64_t, double> distance;
  for (int64_t step = 1; step <= 400; ++step) {
    auto local = Local(parameters, 2, step);
    for (Gradients& one : local) AddTo(one, fixed);
    AddTo(results, world.Step(local));
    AddTo(carelessly, careless.Step(local));
    AddTo(averages, Mean(local));
    distance[step] = RelativeDifference(results, averages);
  }
  EXPECT_LT(distance[400], 0.05);
  EXPECT_LT(distance[400], distance[40] / 4);
  // Without feedback it does not.
  EXPECT_GT(RelativeDifference(carelessly, averages), 0.3);
}

TEST(PowerSgdTest, OnlyMatricesThatGetSmallerAreCompressed) {
  EXPECT_EQ(PowerSgdRank({}, 1, 2), 0);
  EXPECT_EQ(PowerSgdRank({100}, 1, 0), 0);
  EXPECT_EQ(PowerSgdRank({0, 100}, 1, 0), 0);
  EXPECT_EQ(PowerSgdRank({100, 0, 3}, 1, 0), 0);
  EXPECT_EQ(PowerSgdRank({100, 1}, 1, 1), 0);
  EXPECT_EQ(PowerSgdRank({8, 8}, 2, 2), 0);  // 64 < 64 is false
  EXPECT_EQ(PowerSgdRank({8, 9}, 2, 2), 2);  // 68 < 72
  EXPECT_EQ(PowerSgdRank({64, 32, 3, 3}, 4, 2), 4);
  EXPECT_EQ(PowerSgdRank({3, 50}, 8, 0), 3);  // no more than rows
}

TEST(PowerSgdTest, RawTensorsAreExactAndLeaveNoError) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}), Parameter("b", {7}), Parameter("s", {})};
  HookWorld world = Started("", parameters, 3);
  for (int64_t step = 0; step < 5; ++step) {
    const auto local = Local(parameters, 3, step);
    Gradients result = world.Step(local);
    Gradients mean = Mean(local);
    result.erase(result.begin());
    mean.erase(mean.begin());
    EXPECT_LE(RelativeDifference(result, mean), 1e-15);
  }
  for (const StateTensor& tensor : world.Save().tensors) {
    EXPECT_EQ(tensor.parameter, "w");
  }
}

// A step of zeros, or of a lower rank than the factors, leaves zero columns
// in Q. They must not stay zero for ever.
TEST(PowerSgdTest, RecoversFromZeroAndFromLowRankGradients) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {12, 12})};
  for (const double low_rank : {0.0, 1.0}) {
    HookWorld world = Started(",rank=2", parameters, 2);
    const Gradients ones = {std::vector<double>(144, low_rank)};
    world.Step({ones, ones});
    world.Step({ones, ones});
    // A gradient of rank 2 is within reach of two columns.
    Gradients two = ones;
    for (size_t i = 0; i < 144; ++i) {
      two[0][i] = 1 + static_cast<double>(i / 12) * static_cast<double>(i % 12);
    }
    Gradients sum;
    for (int step = 1; step <= 30; ++step) {
      sum.clear();
      AddTo(sum, world.Step({two, two}));
    }
    EXPECT_LE(RelativeDifference(sum, two), 1e-6);
  }
}

TEST(PowerSgdTest, SeedAndNameDecideTheFirstFactor) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  const std::vector<ParameterSpec> renamed = {Parameter("v", {16, 16})};
  const auto local = Local(parameters, 2, 0);
  const Gradients result = Started("", parameters, 2).Step(local);
  EXPECT_EQ(Started(",seed=0", parameters, 2).Step(local), result);
  EXPECT_NE(Started(",seed=1", parameters, 2).Step(local), result);
  EXPECT_NE(Started("", renamed, 2).Step(local), result);
}

TEST(PowerSgdTest, WithoutWarmStartEveryStepDrawsAnew) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  HookWorld world =
      Started(",warm_start=false,error_feedback=false", parameters, 2);
  const auto local = Local(parameters, 2, 0);
  EXPECT_NE(world.Step(local), world.Step(local));
  EXPECT_TRUE(world.Save().tensors.empty());
}

// The sum overflows float16 on its way although every gradient is finite.
TEST(PowerSgdTest, OverflowOnTheWayEntersNoState) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("w", {16, 16}, DType::kFloat32)};
  HookWorld world("fp16(powersgd(start_step=2))", parameters, 2);
  for (int64_t step = 0; step < 4; ++step)
    world.Step(Local(parameters, 2, step));
  const std::string before = SerializeHookState(world.Save());
  auto local = Local(parameters, 2, 5);
  AddTo(local[0], local[0], 1e6);
  const Gradients result = world.Exchange(local);
  for (const double value : result[0]) EXPECT_TRUE(std::isnan(value));
  world.Rollback();
  EXPECT_EQ(SerializeHookState(world.Save()), before);
}

// The infinity is in a raw tensor, the state is that of a matrix in the same
// bucket, and an earlier try of the step had already staged something.
TEST(PowerSgdTest, CommittingAPoisonedStepKeepsTheState) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16}),
                                                 Parameter("b", {7})};
  HookWorld world = Started("", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  HookState before = world.Save();
  auto local = Local(parameters, 2, 1);
  world.Exchange(local);
  world.Rollback();
  local[1][1][3] = std::numeric_limits<double>::infinity();
  const Gradients result = world.Step(local);
  for (const double value : result[0]) EXPECT_TRUE(std::isnan(value));
  ++before.step;  // it was a step all the same
  EXPECT_EQ(SerializeHookState(world.Save()), SerializeHookState(before));
}

TEST(PowerSgdTest, NarrowWrapperHalvesThePayloadAndKeepsTheError) {
  const auto parameters = OddParameters(DType::kFloat32);
  HookWorld wide("powersgd(start_step=2)", parameters, 2);
  HookWorld narrow("bf16(powersgd(start_step=2))", parameters, 2);
  for (int64_t step = 0; step < 4; ++step) {
    wide.Step(Local(parameters, 2, step));
    narrow.Step(Local(parameters, 2, step));
  }
  EXPECT_EQ(narrow.payload_bytes() * 2, wide.payload_bytes());
  for (const StateTensor& tensor : narrow.Save().tensors) {
    EXPECT_EQ(tensor.dtype, DType::kFloat32);
  }
  // The state is the inner hook's: the wrapper may come and go.
  EXPECT_OK(wide.Load(narrow.Save()));
  EXPECT_OK(narrow.Load(wide.Save()));
}

TEST(PowerSgdTest, EveryMatrixIsInTheShardOfOneRank) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", {16, 16}), Parameter("b", {16, 16}),
      Parameter("c", {16, 16}), Parameter("d", {16, 32})};
  HookWorld world = Started("", parameters, 4);
  world.Step(Local(parameters, 4, 0));
  int errors = 0;
  for (const StateTensor& tensor : world.Save().tensors) {
    errors += tensor.kind == "error" ? 1 : 0;
  }
  EXPECT_EQ(errors, 4);  // merging has refused duplicates
}

TEST(PowerSgdTest, StateOfOtherOptionsOrParametersIsRefusedWithTheDifference) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16}),
                                                 Parameter("b", {16})};
  HookWorld world = Started("", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  const HookState state = world.Save();
  const auto refusal = [&](const std::string& spec,
                           const std::vector<ParameterSpec>& other) {
    return HookWorld(spec, other, 2).Load(state);
  };
  constexpr auto kCode = absl::StatusCode::kFailedPrecondition;
  EXPECT_OK(refusal("powersgd(start_step=77)", parameters));
  EXPECT_THAT(refusal("powersgd(rank=2)", parameters),
              StatusIs(kCode, HasSubstr("option rank: saved 1, here 2")));
  EXPECT_THAT(refusal("allreduce", parameters),
              StatusIs(kCode, HasSubstr("powersgd(start_step=2)")));
  EXPECT_THAT(
      refusal("powersgd", {Parameter("w", {16, 17}), Parameter("c", {16})}),
      StatusIs(kCode, AllOf(HasSubstr("parameter w: saved float64[16,16], here "
                                      "float64[16,17]"),
                            HasSubstr("b (float64[16]) only in the state"),
                            HasSubstr("c (float64[16]) not in the state"))));
}

TEST(PowerSgdTest, DamagedStateIsRefusedAndTheHookGoesOnAsBefore) {
  const std::vector<ParameterSpec> parameters = {Parameter("w", {16, 16})};
  HookWorld world = Started("", parameters, 2);
  HookWorld untouched = Started("", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  untouched.Step(Local(parameters, 2, 0));
  const HookState good = world.Save();
  std::vector<HookState> bad(6, good);
  bad[0].options.clear();
  bad[1].tensors[0].parameter = "x";
  bad[2].tensors[0].data.pop_back();
  bad[3].tensors[0].kind = "r";
  bad[4].tensors.push_back(good.tensors[0]);
  bad[5].tensors.back().data.assign(good.tensors.back().data.size(), '\xff');
  for (const HookState& state : bad) {
    EXPECT_THAT(
        world.Load(state),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("fit")));
  }
  EXPECT_EQ(world.Step(Local(parameters, 2, 1)),
            untouched.Step(Local(parameters, 2, 1)));
}

TEST(PowerSgdTest, ModelsThatMakeNoSenseAreRefused) {
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook("powersgd"));
  const std::vector<ParameterSpec> twins = {Parameter("w", {2}),
                                            Parameter("w", {3})};
  EXPECT_THAT(hook->Configure(twins, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w'")));
  EXPECT_THAT(hook->Configure({}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0")));
}

TEST(PowerSgdTest, BucketsThatDoNotFitTheParametersAreRefused) {
  const auto world = InProcessWorld::Create(1);
  const auto communicator = world->MakeRank(0);
  ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook("powersgd"));
  ASSERT_OK(hook->Configure({Parameter("w", {2, 3})}, 1));
  std::vector<double> values(6);
  Bucket bucket;
  bucket.data = Span{values.data(), 6, DType::kFloat64, Device()};
  bucket.gradients = {{0, 0, 6}};
  EXPECT_OK(hook->Prepare(bucket, *communicator));
  const auto refusal = [&](GradientSlot slot, DType dtype) {
    bucket.data.dtype = dtype;
    bucket.gradients = {slot};
    return hook->Prepare(bucket, *communicator).status();
  };
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(refusal({1, 0, 6}, DType::kFloat64),
              StatusIs(kCode, HasSubstr("parameter 1")));
  EXPECT_THAT(refusal({0, 0, 5}, DType::kFloat64),
              StatusIs(kCode, HasSubstr("5 x float64")));
  EXPECT_THAT(refusal({0, 0, 6}, DType::kFloat32),
              StatusIs(kCode, HasSubstr("float32")));
  EXPECT_THAT(refusal({0, 0, 6}, DType::kInt32),
              StatusIs(kCode, HasSubstr("int32")));
}

}  // namespace
}  // namespace coxswain
