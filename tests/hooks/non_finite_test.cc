// What is not finite, and what is hard for an orthogonalisation: no trace of
// it may stay in a hook's state.

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "client/device/tensor.h"
#include "gtest/gtest.h"
#include "tests/conformance/hook_world.h"
#include "tests/hooks/every_hook.h"

namespace coxswain::non_finite_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns a matrix, a vector that shares its bucket, a scalar, and one more
// matrix.
std::vector<ParameterSpec> Model(DType dtype = DType::kFloat32) {
  return {NamedParameter("matrix", {12, 20}, dtype),
          NamedParameter("vector", {9}, dtype),
          NamedParameter("scalar", {}, dtype),
          NamedParameter("other", {16, 2, 5}, dtype)};
}

// A quadratic on each rank, with its own minimum; the mean of all has one at
// the mean of those. Gradient descent on every rank at once.
class Training {
 public:
  explicit Training(int size)
      : size_(size),
        centres_(AllGradients(Model(), 21, size, 0)),
        optimum_(MeanOver(centres_)) {
    AddTo(x_, optimum_, 0);
  }

  std::vector<Gradients> LocalGradients() const {
    std::vector<Gradients> local;
    for (const Gradients& centre : centres_) {
      Gradients gradient = x_;
      AddTo(gradient, centre, -1);
      for (auto& values : gradient) {
        // Curvatures from 0.5 to 1.
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] *= 0.5 + 0.5 / static_cast<double>(1 + i % 7);
        }
      }
      local.push_back(std::move(gradient));
    }
    return local;
  }

  void Descend(const Gradients& average) { AddTo(x_, average, -0.15); }
  double Distance() const { return RelativeDifference(x_, optimum_); }
  int size() const { return size_; }

 private:
  const int size_;
  const std::vector<Gradients> centres_;
  const Gradients optimum_;
  Gradients x_;
};

class NonFiniteTest : public testing::TestWithParam<AnyHook> {};

// How a trainer ends a step whose average is not finite.
enum class Ending { kRollback, kCommit };

double TrainedDistance(const AnyHook& hook, int poisoned_step, double poison,
                       std::pair<size_t, size_t> where, Ending ending) {
  Training training(3);
  HookWorld world(hook.spec, Model(), training.size());
  for (int step = 0; step < 250; ++step) {
    auto local = training.LocalGradients();
    if (step == poisoned_step) local[1][where.first][where.second] = poison;
    const Gradients average = world.Exchange(local);
    EXPECT_EQ(AllFinite(average), step != poisoned_step) << "step " << step;
    if (!AllFinite(average)) {
      // The step is skipped; so it is in the hook, or counted there.
      if (ending == Ending::kRollback) world.Rollback();
      if (ending == Ending::kCommit) world.Commit();
      continue;
    }
    world.Commit();
    training.Descend(average);
  }
  EXPECT_TRUE(AllFinite(MeanError(world.Save(), Model(), training.size())));
  return training.Distance();
}

// Within the noise that the hook's roundings keep up, about 2^-8 of the
// gradients for bf16, whose single ranks' gradients do not vanish.
TEST_P(NonFiniteTest, TrainingWithOnePoisonedStepEndsAtTheSameOptimum) {
  const AnyHook& hook = GetParam();
  if (hook.ranks_differ) return;  // there is no common optimum
  constexpr std::pair<size_t, size_t> kElements[] = {
      {0, 17}, {1, 8}, {2, 0}, {3, 0}};
  EXPECT_LE(TrainedDistance(hook, -1, 0, {0, 0}, Ending::kCommit), 0.02);
  for (const auto& where : kElements) {
    EXPECT_LE(TrainedDistance(hook, 20, kInfinity, where, Ending::kRollback),
              0.02);
    EXPECT_LE(TrainedDistance(hook, 20, std::nan(""), where, Ending::kCommit),
              0.02);
  }
  // In the plain steps before compression starts, and in the first after it.
  for (const int step : {0, 1, 2, 3}) {
    EXPECT_LE(TrainedDistance(hook, step, -kInfinity, {0, 3}, Ending::kCommit),
              0.02);
  }
}

// Every gradient of the rank, on every rank.
TEST_P(NonFiniteTest, AStepOfNothingButNanLeavesTheStateAlone) {
  const AnyHook& hook = GetParam();
  HookWorld world = StartedWorld(hook, Model(), 2);
  HookWorld untouched = StartedWorld(hook, Model(), 2);
  auto local = AllGradients(Model(), 3, 2, 0);
  world.ExchangeApart(local);
  world.Commit();
  untouched.ExchangeApart(local);
  untouched.Commit();
  Gradients all = local[0];
  for (auto& values : all) values.assign(values.size(), std::nan(""));
  for (const Gradients& result : world.ExchangeApart({all, all})) {
    EXPECT_TRUE(AllNan(result));
  }
  if (hook.error_feedback) {
    EXPECT_GE(world.NonFinite().size(), 2u);
  }
  world.Rollback();
  EXPECT_EQ(SerializeHookState(world.Save()),
            SerializeHookState(untouched.Save()));
}

struct Edge {
  std::string name;
  double (*value)(int rank, size_t row, size_t column);
};

// Averages that are finite in float32, and hard in some way. All are of rank
// 1 or 2, so that what is left of them after a few equal steps is small.
const Edge kEdges[] = {
    {"zero", [](int, size_t, size_t) { return 0.0; }},
    {"equal rows",
     [](int rank, size_t, size_t j) { return rank + std::sin(j + 1.0); }},
    {"equal columns",
     [](int rank, size_t i, size_t) { return rank - std::cos(i + 1.0); }},
    {"one element",
     [](int, size_t i, size_t j) { return i == 3 && j == 2 ? -4.0 : 0.0; }},
    {"ranks that cancel",
     [](int rank, size_t i, size_t j) {
       return (rank == 0 ? 1 : -1) * std::sin(i * 3.0 + j);
     }},
    {"denormal",
     [](int, size_t i, size_t j) { return (1.0 + i) * (1.0 + j) * 1e-43; }},
    {"tiny", [](int, size_t i, size_t j) { return (1.0 + i + j) * 1e-30; }},
    {"huge",
     [](int, size_t i, size_t j) { return (1.0 + i) * (2 - j * 0.1) * 1e30; }},
    {"far apart",
     [](int, size_t i, size_t) { return i % 2 == 0 ? 1e30 : 1e-30; }},
};

Gradients Filled(const std::vector<ParameterSpec>& parameters, const Edge& edge,
                 int rank) {
  Gradients gradients;
  for (const ParameterSpec& parameter : parameters) {
    const int64_t m =
        parameter.shape.empty() ? 1 : parameter.count() / parameter.shape[0];
    std::vector<double> values;
    for (int64_t i = 0; i < parameter.count(); ++i) {
      values.push_back(edge.value(rank, static_cast<size_t>(i / m),
                                  static_cast<size_t>(i % m)));
    }
    gradients.push_back(std::move(values));
  }
  return gradients;
}

// Returns whether all averages stay below what float16 holds, if they travel
// so: wide gradients do.
bool Fits(const AnyHook& hook, const Gradients& average, DType dtype) {
  const bool wide = dtype == DType::kFloat32 || dtype == DType::kFloat64;
  return !wide || hook.spec.find("fp16") == std::string::npos ||
         std::fabs(average[0][0]) < 65504;
}

// Steps with the same edge: no NaN, no infinity, nothing reported, and a state
// that another run takes over. What is huge does not fit into float16: there
// all ranks must see it.
void MeetEdge(const AnyHook& hook, const Edge& edge, DType dtype, int size) {
  const auto parameters = Model(dtype);
  HookWorld world = StartedWorld(hook, parameters, size);
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(Filled(parameters, edge, rank));
  }
  const bool fits = Fits(hook, MeanOver(local), dtype);
  for (int step = 0; step < 4; ++step) {
    for (const Gradients& result : world.ExchangeApart(local)) {
      EXPECT_EQ(AllFinite(result), fits)
          << edge.name << ", " << size << " ranks of " << NameOf(dtype)
          << ", step " << step;
    }
    world.Commit();
    EXPECT_TRUE(world.NonFinite().empty());
  }
  const HookState state = world.Save();
  EXPECT_TRUE(AllFinite(MeanError(state, parameters, size))) << edge.name;
  EXPECT_OK(HookWorld(hook.spec, parameters, size).Load(state)) << edge.name;
}

TEST_P(NonFiniteTest, EdgesGiveNoNan) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
    for (const Edge& edge : kEdges) {
      MeetEdge(GetParam(), edge, dtype, 1);
      MeetEdge(GetParam(), edge, dtype, 2);
    }
  }
}

// After the edge has gone, what is sent is what comes in: a plain gradient is
// recovered, up to what error feedback still owes.
TEST_P(NonFiniteTest, AfterAnEdgeOrdinaryGradientsComeThrough) {
  const AnyHook& hook = GetParam();
  if (hook.ranks_differ) return;
  for (const Edge& edge : kEdges) {
    // What was huge is owed for long.
    if (edge.name == "huge" || edge.name == "far apart") continue;
    HookWorld world = StartedWorld(hook, Model(), 2);
    for (int step = 0; step < 3; ++step) {
      world.Step({Filled(Model(), edge, 0), Filled(Model(), edge, 1)});
    }
    const Edge plane = {"", [](int rank, size_t i, size_t j) {
                          return rank + 1.0 * (1 + i) * std::cos(j + 0.5);
                        }};
    const std::vector<Gradients> local = {Filled(Model(), plane, 0),
                                          Filled(Model(), plane, 1)};
    Gradients sent;
    constexpr int kSteps = 80;
    for (int step = 0; step < kSteps; ++step) {
      AddTo(sent, world.Step(local), 1.0 / kSteps);
    }
    EXPECT_LE(RelativeDifference(sent, MeanOver(local)), 0.12) << edge.name;
  }
}

// Every gradient is finite, but a sum on the way is not: all ranks get a NaN or
// an infinity, none is blamed, and the state stays as it was.
TEST_P(NonFiniteTest, OverflowOnTheWayEntersNoState) {
  const AnyHook& hook = GetParam();
  if (!hook.error_feedback) return;
  HookWorld world = StartedWorld(hook, Model(), 2);
  HookWorld untouched = StartedWorld(hook, Model(), 2);
  const auto before = AllGradients(Model(), 4, 2, 0);
  world.Step(before);
  untouched.Step(before);
  // The largest float32 in every element, of both ranks.
  const Edge largest = {"", [](int, size_t, size_t) { return 3.4e38; }};
  const std::vector<Gradients> local = {Filled(Model(), largest, 0),
                                        Filled(Model(), largest, 1)};
  const Gradients result = world.Exchange(local);
  EXPECT_TRUE(world.NonFinite().empty());
  if (!AllFinite(result)) {
    world.Rollback();
    EXPECT_EQ(SerializeHookState(world.Save()),
              SerializeHookState(untouched.Save()));
    // Committed, the step counts, and errors and factors are as they were.
    world.Step(local);
    EXPECT_EQ(RelativeDifference(MeanError(world.Save(), Model(), 2),
                                 MeanError(untouched.Save(), Model(), 2)),
              0);
  } else {
    EXPECT_LE(RelativeDifference(result, MeanOver(local)), 0.1);
    world.Commit();
  }
  for (int64_t step = 1; step < 4; ++step) {
    EXPECT_TRUE(AllFinite(world.Step(AllGradients(Model(), 4, 2, step))));
  }
}

// What is owed can outgrow float16 while every gradient and average fits, since
// a hook of few columns lets the other directions wait. Left alone, it would
// make the sums of all later steps overflow.
TEST_P(NonFiniteTest, ErrorsThatOutgrowFloat16DoNotStopTraining) {
  const AnyHook& hook = GetParam();
  if (hook.ranks_differ) return;
  constexpr size_t kSize = 64;
  const std::vector<ParameterSpec> parameters = {
      NamedParameter("w", {kSize, kSize}, DType::kFloat16)};
  HookWorld world = StartedWorld(hook, parameters, 2);
  Gradients none = {std::vector<double>(kSize * kSize, 0.0)};
  Gradients diagonal = none;
  for (size_t i = 0; i < kSize; ++i) diagonal[0][i * (kSize + 1)] = 10000;
  int sound = 0;
  for (int step = 0; step < 250; ++step) {
    const Gradients& gradient = step < 200 ? diagonal : none;
    const bool finite = AllFinite(world.Exchange({gradient, gradient}));
    if (finite) {
      world.Commit();
    } else {
      world.Rollback();
    }
    EXPECT_TRUE(world.NonFinite().empty());
    if (step >= 240) sound += finite ? 1 : 0;
  }
  EXPECT_EQ(sound, 10);
}

// A step that is rolled back may be repeated by workers that take the state
// over, so an overflow in it drops nothing of that, be it the third on end.
TEST(OverflowTest, ARollbackAfterAnOverflowLeavesTheState) {
  constexpr size_t kSize = 64;
  const std::vector<ParameterSpec> parameters = {
      NamedParameter("w", {kSize, kSize}, DType::kFloat16)};
  Gradients diagonal = {std::vector<double>(kSize * kSize, 0.0)};
  for (size_t i = 0; i < kSize; ++i) diagonal[0][i * (kSize + 1)] = 10000;
  for (const char* spec :
       {"powersgd(rank=1,start_step=2)", "acp_sgd(rank=1,start_step=2)",
        "batched_powersgd(rank=1,start_step=2)"}) {
    HookWorld world(spec, parameters, 2);
    int overflows = 0;
    for (int step = 0; step < 200 && overflows < 3; ++step) {
      const std::string before = SerializeHookState(world.Save());
      if (AllFinite(world.Exchange({diagonal, diagonal}))) {
        world.Commit();
        continue;
      }
      ++overflows;
      world.Rollback();
      EXPECT_TRUE(SerializeHookState(world.Save()) == before)
          << spec << ", step " << step << ", overflow " << overflows;
    }
    EXPECT_EQ(overflows, 3) << spec;
  }
}

INSTANTIATE_TEST_SUITE_P(Hooks, NonFiniteTest, testing::ValuesIn(EveryHook()),
                         AnyHookName);

}  // namespace
}  // namespace coxswain::non_finite_test
