// powersgd and acp_sgd against their formulas in double, over 200 steps with
// fresh random gradients: in double from the first step to the last, in
// narrower types step by step from the hook's own state.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/reference/low_rank.h"
#include "tests/hooks/reference/rounding.h"

namespace coxswain::low_rank_reference_test {
namespace {

using reference::LowRankOptions;
using reference::LowRankReference;
using reference::LowRankState;
using reference::Matrix;

constexpr int64_t kSteps = 200;
constexpr int64_t kStart = 2;

struct Case {
  std::string name;
  std::string spec;
  LowRankOptions meaning;
};

LowRankOptions Options(int64_t rank, double rate) {
  LowRankOptions options;
  options.rank = rank;
  options.rate = rate;
  return options;
}

// With options besides start_step.
Case PowerSgd(std::string name, const std::string& options,
              LowRankOptions meaning) {
  return {std::move(name),
          absl::StrCat("powersgd(start_step=", kStart, options, ")"), meaning};
}

Case AcpSgd(std::string name, const std::string& options,
            LowRankOptions meaning) {
  meaning.alternating = true;
  return {std::move(name),
          absl::StrCat("acp_sgd(start_step=", kStart, options, ")"), meaning};
}

std::vector<Case> Cases() {
  LowRankOptions seven = Options(4, 1);
  seven.seed = 7;
  LowRankOptions careless = Options(2, 2);
  careless.error_feedback = false;
  LowRankOptions cold = Options(2, 2);
  cold.warm_start = false;
  LowRankOptions epsilon = Options(2, 2);
  epsilon.epsilon = 0.25;
  LowRankOptions global = Options(2, 1);
  global.global_residual = true;
  LowRankOptions global_epsilon = epsilon;
  global_epsilon.global_residual = true;
  return {
      PowerSgd("Rank1", "", Options(1, 2)),
      PowerSgd("Rank2", ",rank=2,min_compression_rate=1", Options(2, 1)),
      PowerSgd("Rank4", ",rank=4,min_compression_rate=1,seed=7", seven),
      PowerSgd("GramSchmidt",
               ",rank=4,min_compression_rate=1,seed=7,"
               "orthogonalize=gram_schmidt",
               seven),
      PowerSgd("CholeskyQr2",
               ",rank=4,min_compression_rate=1,seed=7,"
               "orthogonalize=cholesky_qr2",
               seven),
      PowerSgd("Batched",
               ",rank=4,min_compression_rate=1,seed=7,batch_same_shape=true",
               seven),
      PowerSgd("NoFeedback", ",rank=2,error_feedback=false", careless),
      PowerSgd("ColdStart", ",rank=2,warm_start=false", cold),
      PowerSgd("Epsilon",
               ",rank=2,orthogonalization_epsilon=0.25,"
               "orthogonalize=gram_schmidt",
               epsilon),
      PowerSgd("PyTorch", ",rank=2,min_compression_rate=1,mode=pytorch",
               global),
      PowerSgd("PyTorchEpsilon",
               ",rank=2,orthogonalization_epsilon=0.25,mode=pytorch",
               global_epsilon),
      AcpSgd("Acp", ",rank=2", Options(2, 2)),
      AcpSgd("AcpRank4", ",rank=4,min_compression_rate=1,seed=7", seven),
      AcpSgd("AcpNoFeedback", ",rank=2,error_feedback=false", careless),
  };
}

std::vector<Gradients> Local(const std::vector<ParameterSpec>& parameters,
                             int size, int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(parameters, 6, rank, step));
  }
  return reference::RoundTo(parameters[0].dtype, std::move(local));
}

// Tall, wide, of four dimensions, and what travels raw.
std::vector<ParameterSpec> Model(DType dtype) {
  auto model = OddParameters(dtype);
  return {model[0], model[1], model[2], model[4], model[5], model[8]};
}

HookWorld MakeWorld(const Case& one,
                    const std::vector<ParameterSpec>& parameters, int size) {
  HookWorld world(one.spec, parameters, size);
  for (int64_t step = 0; step < kStart; ++step) {
    world.Step(Local(parameters, size, step));
  }
  return world;
}

// Columns one after the other become an m x r matrix.
Matrix FactorOf(const StateTensor& tensor) {
  return Transposed(Matrix(static_cast<size_t>(tensor.shape[0]),
                           static_cast<size_t>(tensor.shape[1]),
                           ValuesOf(tensor)));
}

// Gives the reference the state that the hooks are in.
void Adopt(HookWorld& world, const std::vector<ParameterSpec>& parameters,
           LowRankReference& reference) {
  reference.states().clear();
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const StateTensor& tensor : world.SaveAlone(rank).tensors) {
      size_t index = 0;
      while (parameters[index].name != tensor.parameter) ++index;
      LowRankState& state = reference.states()[index];
      if (tensor.kind == "q") state.q = FactorOf(tensor);
      if (tensor.kind == "p") state.p = FactorOf(tensor);
      if (tensor.kind != "error") continue;
      std::vector<double> values = ValuesOf(tensor);
      const auto n =
          static_cast<size_t>(tensor.shape.empty() ? 1 : tensor.shape[0]);
      state.errors.resize(static_cast<size_t>(world.size()));
      state.errors[static_cast<size_t>(rank)] =
          Matrix(n, values.size() / n, values);
    }
  }
}

class LowRankReferenceTest : public testing::TestWithParam<Case> {};

// The largest differences seen: of a step's result, of the mean error after it.
struct Worst {
  double result = 0;
  double error = 0;
};

// 200 steps; every `stretch` of them the reference starts from the state that
// the hooks are in.
Worst Compare(const Case& one, const std::vector<ParameterSpec>& parameters,
              int size, int64_t stretch) {
  HookWorld world = MakeWorld(one, parameters, size);
  LowRankReference reference(parameters, one.meaning);
  Worst worst;
  for (int64_t step = kStart; step < kStart + kSteps; ++step) {
    if ((step - kStart) % stretch == 0) Adopt(world, parameters, reference);
    const auto local = Local(parameters, size, step);
    const Gradients expected = reference.Step(local, step);
    worst.result =
        std::max(worst.result, RelativeDifference(world.Step(local), expected));
    worst.error =
        std::max(worst.error,
                 RelativeDifference(MeanError(world.Save(), parameters, size),
                                    reference.MeanError()));
  }
  return worst;
}

// Error feedback of noise, with a basis that goes on from step to step, is a
// chaotic system: the distance of two runs that differ in the last bit grows
// tenfold every ten steps at rank 1, every five at rank 4. Hence stretches of
// ten steps from a shared state. The tolerance is 2^-53 times what ten steps
// amplify (1e2), what the orthogonalisation of a random matrix does (1e2) and a
// wide margin. Where nothing is fed back into the basis, it is one stretch.
TEST_P(LowRankReferenceTest, DoubleIsTheFormula) {
  const auto& meaning = GetParam().meaning;
  const bool chaotic = meaning.error_feedback && meaning.warm_start;
  const auto parameters = Model(DType::kFloat64);
  for (const int size : {1, 2, 3, 4}) {
    const Worst worst =
        Compare(GetParam(), parameters, size, chaotic ? 10 : kSteps);
    EXPECT_LE(worst.result, 1e-10) << size << " ranks";
    EXPECT_LE(worst.error, 1e-10) << size << " ranks";
    RecordProperty(absl::StrCat("worst", size), absl::StrCat(worst.result));
  }
}

// One step: 2^-24 times the condition of the orthogonalised factors, whose
// worst over 200 steps of random matrices is some tens.
TEST_P(LowRankReferenceTest, FloatIsTheFormulaStepByStep) {
  const auto parameters = Model(DType::kFloat32);
  for (const int size : {1, 2, 4}) {
    const Worst worst = Compare(GetParam(), parameters, size, 1);
    EXPECT_LE(worst.result, 3e-6) << size << " ranks";
    EXPECT_LE(worst.error, 3e-6) << size << " ranks";
    RecordProperty(absl::StrCat("worst", size), absl::StrCat(worst.result));
  }
}

// What travels in 16 bits is rounded before the sum and after each addition of
// it; P and Q both are, and the orthogonalisation of P amplifies that by the
// condition of the factors. Everything else is as exact as in float.
TEST(NarrowReferenceTest, IsTheFormulaUpToTheRoundingsOfWhatTravels) {
  constexpr double kHalf = 0x1p-11;
  constexpr double kBrain = 0x1p-8;
  LowRankOptions rank2 = Options(2, 2);
  LowRankOptions alternating = rank2;
  alternating.alternating = true;
  struct Narrow {
    std::string spec;
    DType dtype;
    LowRankOptions meaning;
    double unit;
  };
  const Narrow cases[] = {
      {"powersgd(start_step=2,rank=2)", DType::kFloat16, rank2, kHalf},
      {"powersgd(start_step=2,rank=2)", DType::kBFloat16, rank2, kBrain},
      {"fp16(powersgd(start_step=2,rank=2))", DType::kFloat32, rank2, kHalf},
      {"bf16(powersgd(start_step=2,rank=2))", DType::kFloat64, rank2, kBrain},
      {"acp_sgd(start_step=2,rank=2)", DType::kBFloat16, alternating, kBrain},
      {"fp16(acp_sgd(start_step=2,rank=2))", DType::kFloat32, alternating,
       kHalf},
  };
  for (const Narrow& narrow : cases) {
    const Case one = {"", narrow.spec, narrow.meaning};
    const Worst worst = Compare(one, Model(narrow.dtype), 3, 1);
    EXPECT_LE(worst.result, 16 * narrow.unit) << narrow.spec;
    EXPECT_LE(worst.error, 16 * narrow.unit) << narrow.spec;
    RecordProperty("worst", absl::StrCat(worst.result / narrow.unit));
  }
}

// batched_powersgd is powersgd of a bucket's elements in a row, as a matrix of
// ceil(sqrt(L)) columns with zeros behind them.
class BatchedWorld {
 public:
  BatchedWorld(const std::string& options, DType dtype, int size)
      : parameters_(Parameters(dtype)),
        world_(
            absl::StrCat("batched_powersgd(start_step=", kStart, options, ")"),
            parameters_, size, {{0, 1, 2, 3, 4}}) {}

  std::vector<Gradients> Local(int64_t step) const {
    return coxswain::Local(parameters_, world_.size(), step);
  }
  Gradients Step(const std::vector<Gradients>& local) {
    return Padded(world_.Step(local));
  }

  // Returns the bucket as the one parameter of a model.
  static std::vector<ParameterSpec> AsOne(DType dtype) {
    ParameterSpec one;
    one.shape = {kRows, kColumns};
    one.dtype = dtype;
    return {one};
  }
  static Gradients Padded(const Gradients& gradients) {
    std::vector<double> flat;
    for (const auto& values : gradients) {
      flat.insert(flat.end(), values.begin(), values.end());
    }
    flat.resize(kRows * kColumns);
    return {flat};
  }

  // Makes a step of the reference, and returns the result. What it computes for
  // the zeros behind the bucket is no gradient: it is neither used nor missed.
  static Gradients Emulate(LowRankReference& reference,
                           const std::vector<Gradients>& local, int64_t step) {
    std::vector<Gradients> padded;
    for (const Gradients& own : local) padded.push_back(Padded(own));
    Gradients result = reference.Step(padded, step);
    ClearPadding(result[0]);
    for (Matrix& error : reference.states()[0].errors) {
      ClearPadding(error.values);
    }
    return result;
  }

  // Gives the reference the state that the hooks are in.
  void Lend(LowRankReference& reference) {
    LowRankState& state = reference.states()[0];
    state = LowRankState();
    for (int rank = 0; rank < world_.size(); ++rank) {
      const HookState saved = world_.SaveAlone(rank);
      for (const StateTensor& tensor : saved.tensors) {
        if (tensor.kind.rfind("q/", 0) == 0) state.q = FactorOf(tensor);
      }
      const Gradients error = Padded(MeanError(saved, parameters_, 1));
      state.errors.emplace_back(kRows, kColumns, error[0]);
    }
  }

 private:
  static constexpr size_t kElements = 93;
  static constexpr size_t kRows = 10;
  static constexpr size_t kColumns = 10;

  static void ClearPadding(std::vector<double>& values) {
    values.resize(kElements);
    values.resize(kRows * kColumns);
  }

  static std::vector<ParameterSpec> Parameters(DType dtype) {
    const std::vector<std::vector<int64_t>> shapes = {
        {9, 8}, {11}, {}, {0, 3}, {3, 3}};
    std::vector<ParameterSpec> parameters;
    for (const auto& shape : shapes) {
      ParameterSpec& parameter = parameters.emplace_back();
      parameter.name = absl::StrCat("p", parameters.size());
      parameter.shape = shape;
      parameter.dtype = dtype;
    }
    return parameters;
  }

  const std::vector<ParameterSpec> parameters_;
  HookWorld world_;
};

TEST(BatchedReferenceTest, IsPowerSgdOfTheBucket) {
  for (const int64_t rank : {1, 3}) {
    for (const int size : {1, 2, 4}) {
      for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
        const bool wide = dtype == DType::kFloat64;
        BatchedWorld world(absl::StrCat(",rank=", rank), dtype, size);
        LowRankReference reference(BatchedWorld::AsOne(dtype),
                                   Options(rank, 0));
        // The first step draws Q; its name is the hook's affair.
        for (int64_t step = 0; step <= kStart; ++step) {
          world.Step(world.Local(step));
        }
        for (int64_t step = 0; step < kSteps; ++step) {
          if (!wide || step % 10 == 0) world.Lend(reference);
          const auto local = world.Local(100 + step);
          const Gradients expected = world.Emulate(reference, local, step);
          EXPECT_LE(RelativeDifference(world.Step(local), expected),
                    wide ? 1e-10 : 3e-6)
              << "rank " << rank << ", " << size << " ranks, step " << step;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, LowRankReferenceTest,
                         testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace coxswain::low_rank_reference_test
