#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/in_process/in_process_world.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "hooks/averagers/mean.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/averager_team.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Group = AveragerTeam::Group;

Group InProcessGroup(int size) {
  auto world = InProcessWorld::Create(size);
  Group group;
  for (int rank = 0; rank < size; ++rank)
    group.push_back(world->MakeRank(rank));
  return group;
}

Group TcpGroup(int size) {
  auto store = std::make_shared<MemoryStore>();
  Group group(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      CommunicatorOptions options;
      options.id = "averagers";
      options.rank = rank;
      options.size = size;
      options.store = store;
      auto connected = ConnectTcp(options);
      ASSERT_OK(connected);
      group[static_cast<size_t>(rank)] = *std::move(connected);
    });
  }
  for (auto& thread : threads) thread.join();
  return group;
}

// What an averager must do to the values of all ranks, in double precision,
// written down as plainly as can be.
struct Model {
  std::vector<ParameterSpec> parameters;
  std::vector<Values> ranks;
  // DiLoCo's.
  Values outer;
  Values momentum;
};

struct Rule {
  // What happens in call `call`, from 0; whether all ranks agree then.
  std::function<bool(int64_t call, Model& model)> step;
  // Brings ranks together that do not.
  std::function<void(Model& model)> unite;
};

Values Rounded(const std::vector<ParameterSpec>& parameters, Values values) {
  for (size_t p = 0; p < values.size(); ++p) {
    for (double& value : values[p]) {
      value = RoundTo(parameters[p].dtype, value);
    }
  }
  return values;
}

// Ranks [first, first + count) take their mean.
void AverageRanks(Model& model, size_t first, size_t count) {
  Values mean;
  for (size_t r = first; r < first + count; ++r) {
    AddTo(mean, model.ranks[r], 1.0 / static_cast<double>(count));
  }
  for (size_t r = first; r < first + count; ++r) {
    model.ranks[r] = Rounded(model.parameters, mean);
  }
}

void AverageBlocks(Model& model, size_t size) {
  for (size_t first = 0; first < model.ranks.size(); first += size) {
    AverageRanks(model, first, std::min(size, model.ranks.size() - first));
  }
}

void AverageAll(Model& model) { AverageBlocks(model, model.ranks.size()); }

Rule PostLocalSgdRule(int64_t start, int64_t period) {
  const auto step = [=](int64_t call, Model& model) {
    if (call < start) return true;
    if ((call - start) % period != 0) return false;
    AverageAll(model);
    return true;
  };
  return {step, AverageAll};
}

// (period, group size) from the smallest; 0: all.
Rule HierarchicalRule(int64_t start,
                      std::vector<std::pair<int64_t, size_t>> levels) {
  const auto step = [=](int64_t call, Model& model) {
    if (call < start) return true;
    for (size_t i = levels.size(); i-- > 0;) {
      if (call % levels[i].first != 0) continue;
      const size_t size = levels[i].second;
      AverageBlocks(model, size == 0 ? model.ranks.size() : size);
      return size == 0 || size >= model.ranks.size();
    }
    return false;
  };
  return {step, AverageAll};
}

void OuterStep(Model& model, double lr, double mu, bool nesterov) {
  Values gradient;
  for (const Values& local : model.ranks) {
    const double share = 1.0 / static_cast<double>(model.ranks.size());
    AddTo(gradient, model.outer, share);
    AddTo(gradient, local, -share);
  }
  Values momentum;
  AddTo(momentum, gradient);
  if (!model.momentum.empty()) AddTo(momentum, model.momentum, mu);
  model.momentum = momentum;
  if (nesterov) AddTo(model.outer, gradient, -lr);
  AddTo(model.outer, momentum, nesterov ? -lr * mu : -lr);
  for (Values& local : model.ranks) {
    local = Rounded(model.parameters, model.outer);
  }
}

Rule DilocoRule(int64_t start, int64_t inner_steps, double lr, double mu,
                bool nesterov) {
  const auto unite = [=](Model& model) { OuterStep(model, lr, mu, nesterov); };
  const auto step = [=](int64_t call, Model& model) {
    const int64_t steps = call + 1;
    if (steps == start) model.outer = model.ranks[0];
    if (steps <= start) return true;
    if ((steps - start) % inner_steps != 0) return false;
    unite(model);
    return true;
  };
  return {step, unite};
}

struct Case {
  std::string name;
  std::string spec;
  int64_t start;
  Rule rule;
  DType dtype = DType::kFloat32;
  double tolerance = 1e-5;  // relative, after 200 steps
};

void PrintTo(const Case& value, std::ostream* out) { *out << value.spec; }

std::vector<ParameterSpec> Parameters(const Case& test) {
  return OddParameters(test.dtype);
}

Values Initial(const Case& test) {
  return Rounded(Parameters(test),
                 NormalGradients(Parameters(test), 5, /*rank=*/0, /*step=*/0));
}

Model BeginModel(const Case& test, int size) {
  Model model;
  model.parameters = Parameters(test);
  model.ranks.assign(static_cast<size_t>(size), Initial(test));
  model.outer = model.ranks[0];
  return model;
}

// One step of all ranks; whether they agree after it.
bool StepModel(const Case& test, int64_t call, Model& model) {
  for (size_t r = 0; r < model.ranks.size(); ++r) {
    ApplyUpdate(
        model.parameters,
        LocalUpdate(model.parameters, static_cast<int>(r), call, test.start),
        model.ranks[r]);
  }
  return test.rule.step(call, model);
}

// Compares a trace that begins with call `from` with the model.
void ExpectAsModel(const Case& test, int64_t from,
                   const std::vector<std::vector<Values>>& trace,
                   Model& model) {
  for (size_t i = 0; i < trace.size(); ++i) {
    const int64_t call = from + static_cast<int64_t>(i);
    const bool agree = StepModel(test, call, model);
    for (size_t r = 0; r < model.ranks.size(); ++r) {
      ASSERT_LE(RelativeDifference(trace[i][r], model.ranks[r]), test.tolerance)
          << "rank " << r << " of " << model.ranks.size() << ", call " << call;
      if (agree) {
        ASSERT_EQ(trace[i][r], trace[i][0]) << call;
      }
    }
  }
}

class AveragersTest : public testing::TestWithParam<Case> {};

TEST_P(AveragersTest, FollowsItsFormulaFor200Steps) {
  const Case& test = GetParam();
  for (const int size : {1, 2, 3, 8}) {
    AveragerTeam team(test.spec, Parameters(test), InProcessGroup(size),
                      Initial(test));
    Model model = BeginModel(test, size);
    ExpectAsModel(test, 0, team.RunTo(200, test.start), model);
  }
}

TEST_P(AveragersTest, ReportsWhetherTheRanksAgree) {
  const Case& test = GetParam();
  AveragerTeam team(test.spec, Parameters(test), InProcessGroup(2),
                    Initial(test));
  Model model = BeginModel(test, 2);
  EXPECT_FALSE(team.averager(0).diverged());
  for (int64_t call = 0; call < 30; ++call) {
    const bool agree = StepModel(test, call, model);
    EXPECT_EQ(team.averager(0).unites_next(), agree && call >= test.start)
        << call;
    team.RunTo(call + 1, test.start);
    EXPECT_EQ(team.averager(0).diverged(), !agree) << call;
  }
}

TEST_P(AveragersTest, AverageNowBringsTheRanksTogetherAndKeepsTheRhythm) {
  const Case& test = GetParam();
  AveragerTeam team(test.spec, Parameters(test), InProcessGroup(3),
                    Initial(test));
  const int64_t stop = test.start + 14;
  team.RunTo(stop, test.start);
  const bool exchanges = team.averager(0).diverged();
  const int64_t before = team.communicator(0).payload_bytes();
  const std::vector<Values> values = team.AverageNow();
  EXPECT_EQ(values[1], values[0]);
  EXPECT_EQ(values[2], values[0]);
  EXPECT_EQ(team.communicator(0).payload_bytes() > before, exchanges);
  // Twice is once.
  const int64_t after = team.communicator(0).payload_bytes();
  EXPECT_EQ(team.AverageNow(), values);
  EXPECT_EQ(team.communicator(0).payload_bytes(), after);
  EXPECT_EQ(team.averager(0).step(), stop);
  AveragerTeam undisturbed(test.spec, Parameters(test), InProcessGroup(3),
                           Initial(test));
  undisturbed.RunTo(stop, test.start);
  for (int64_t step = stop; step < stop + 20; ++step) {
    EXPECT_EQ(team.averager(0).averages_next(),
              undisturbed.averager(0).averages_next());
    team.RunTo(step + 1, test.start);
    undisturbed.RunTo(step + 1, test.start);
  }
}

TEST_P(AveragersTest, GoesOnFromItsStateOnAnyNumberOfRanks) {
  const Case& test = GetParam();
  for (const auto& [before, after] :
       {std::pair{2, 3}, {3, 1}, {1, 2}, {4, 2}, {2, 2}}) {
    const int64_t stop = test.start + 13;
    AveragerTeam team(test.spec, Parameters(test), InProcessGroup(before),
                      Initial(test));
    team.RunTo(stop, test.start);
    const Values united = team.AverageNow()[0];
    const HookState state = team.Save();
    EXPECT_EQ(state.step, stop);

    AveragerTeam restarted(test.spec, Parameters(test), InProcessGroup(after),
                           united);
    ASSERT_OK(restarted.Load(state));
    EXPECT_EQ(restarted.averager(0).step(), stop);
    EXPECT_FALSE(restarted.averager(0).diverged());
    EXPECT_EQ(SerializeHookState(restarted.Save()).size(),
              SerializeHookState(state).size());

    Model model = BeginModel(test, before);
    bool agree = true;
    for (int64_t call = 0; call < stop; ++call) {
      agree = StepModel(test, call, model);
    }
    if (!agree) test.rule.unite(model);
    EXPECT_LE(RelativeDifference(united, model.ranks[0]), test.tolerance);
    model.ranks.assign(static_cast<size_t>(after), united);
    ExpectAsModel(test, stop, restarted.RunTo(stop + 25, test.start), model);
  }
}

TEST_P(AveragersTest, AStateThatDoesNotFitIsRefused) {
  const Case& test = GetParam();
  AveragerTeam team(test.spec, Parameters(test), InProcessGroup(2),
                    Initial(test));
  team.RunTo(test.start + 7, test.start);
  const HookState state = team.Save();
  const auto refused = [](const std::string& why) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why));
  };
  HookState other = state;
  other.spec = "powersgd";
  EXPECT_THAT(team.Load(other), refused("powersgd"));
  auto parameters = Parameters(test);
  parameters[1].shape = {3, 2};
  AveragerTeam another(test.spec, parameters, InProcessGroup(2), Initial(test));
  EXPECT_THAT(another.Load(state), refused("p1.weight"));
  ASSERT_OK_AND_ASSIGN(HookState shard,
                       team.averager(1).SaveState(team.communicator(1)));
  EXPECT_THAT(team.Load(shard), refused("merged"));
  EXPECT_EQ(team.averager(0).step(), test.start + 7);
}

std::vector<Case> Cases() {
  return {
      {"PostLocalSgd", "post_local_sgd(start_step=5,period=4)", 5,
       PostLocalSgdRule(5, 4)},
      {"PostLocalSgdFromTheStart", "post_local_sgd(start_step=0,period=3)", 0,
       PostLocalSgdRule(0, 3)},
      {"PostLocalSgdEveryStep", "post_local_sgd(start_step=2,period=1)", 2,
       PostLocalSgdRule(2, 1)},
      {"PostLocalSgdFloat64", "post_local_sgd(start_step=3,period=7)", 3,
       PostLocalSgdRule(3, 7), DType::kFloat64, 1e-13},
      {"PostLocalSgdBFloat16", "post_local_sgd(start_step=3,period=7)", 3,
       PostLocalSgdRule(3, 7), DType::kBFloat16, 2e-3},
      {"HierarchicalSgd", "hierarchical_sgd(levels=2x2+6xall,start_step=5)", 5,
       HierarchicalRule(5, {{2, 2}, {6, 0}})},
      {"HierarchicalSgdThreeLevels",
       "hierarchical_sgd(levels=1x2+3x4+9xall,start_step=0)", 0,
       HierarchicalRule(0, {{1, 2}, {3, 4}, {9, 0}})},
      {"HierarchicalSgdOneLevel", "hierarchical_sgd(levels=4xall,start_step=6)",
       6, HierarchicalRule(6, {{4, 0}}), DType::kFloat64, 1e-13},
      {"Diloco", "diloco(inner_steps=10)", 0,
       DilocoRule(0, 10, 0.7, 0.9, true)},
      {"DilocoAfterAStart", "diloco(inner_steps=4,start_step=6,outer_lr=0.5)",
       6, DilocoRule(6, 4, 0.5, 0.9, true), DType::kFloat64, 1e-12},
      {"DilocoHeavyBall",
       "diloco(inner_steps=5,nesterov=false,outer_momentum=0.5)", 0,
       DilocoRule(0, 5, 0.7, 0.5, false)},
      {"DilocoOfAverages", "diloco(inner_steps=3,outer_lr=1,outer_momentum=0)",
       0, DilocoRule(0, 3, 1, 0, true)},
      {"DilocoFloat16", "diloco(inner_steps=8)", 0,
       DilocoRule(0, 8, 0.7, 0.9, true), DType::kFloat16, 1e-3},
  };
}

INSTANTIATE_TEST_SUITE_P(All, AveragersTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           return info.param.name;
                         });

TEST(HierarchicalSgdTest, OverTcpToo) {
  Case test = {"", "hierarchical_sgd(levels=2x2+6xall,start_step=5)", 5,
               HierarchicalRule(5, {{2, 2}, {6, 0}})};
  for (const int size : {3, 4}) {
    AveragerTeam team(test.spec, Parameters(test), TcpGroup(size),
                      Initial(test));
    Model model = BeginModel(test, size);
    ExpectAsModel(test, 0, team.RunTo(40, test.start), model);
  }
}

TEST(HierarchicalSgdTest, LevelsThatMakeNoSenseAreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"2", "'2' is not a period and a group size"},
      {"2x", "'2x'"},
      {"2x4x8", "'2x4x8'"},
      {"ax4", "'ax4'"},
      {"2x4+", "''"},
      {"0x4", "period"},
      {"2x0", "group size"},
      {"2xall+4x8", "a group of all ranks comes last"},
      {"4x2+2x8", "2x8 cannot follow 4x2"},
      {"4x2+4x8", "larger multiple"},
      {"4x2+6x8", "larger multiple"},
      {"4x2+8x2", "group size must be a larger"},
      {"4x2+8x3", "group size must be a larger"},
  };
  for (const auto& [levels, why] : cases) {
    EXPECT_THAT(
        MakeAverager(absl::StrCat("hierarchical_sgd(levels=", levels, ")")),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << levels;
  }
  ASSERT_OK_AND_ASSIGN(const std::string canonical,
                       CanonicalSpec("hierarchical_sgd(levels = 02x04+8xall)"));
  EXPECT_EQ(canonical, "hierarchical_sgd(levels=2x4+8xall)");
}

TEST(HierarchicalSgdTest, TheLastGroupIsTheWorld) {
  const Group group = InProcessGroup(1);
  ASSERT_OK_AND_ASSIGN(const auto averager,
                       MakeAverager("hierarchical_sgd(levels=2x4+8x16)"));
  EXPECT_THAT(averager->Configure({}, {}, *group[0]),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("has 16 ranks and the job 1"),
                             HasSubstr("write all"))));
  ASSERT_OK_AND_ASSIGN(const auto fits,
                       MakeAverager("hierarchical_sgd(levels=8x1)"));
  EXPECT_OK(fits->Configure({}, {}, *group[0]));
}

TEST(DilocoTest, AStateFromBeforeTheStartDoesNotFitAfterIt) {
  Case test = {"", "diloco(inner_steps=4)", 0,
               DilocoRule(0, 4, 0.7, 0.9, true)};
  AveragerTeam late("diloco(inner_steps=4,start_step=9)", Parameters(test),
                    InProcessGroup(2), Initial(test));
  late.RunTo(3, 9);
  const HookState state = late.Save();
  EXPECT_TRUE(state.tensors.empty());
  AveragerTeam early(test.spec, Parameters(test), InProcessGroup(2),
                     Initial(test));
  EXPECT_THAT(early.Load(state), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("later start_step")));
  EXPECT_OK(late.Load(state));
}

TEST(DilocoTest, ADamagedStateIsRefusedAndTheOldOneStays) {
  Case test = {"", "diloco(inner_steps=4)", 0,
               DilocoRule(0, 4, 0.7, 0.9, true)};
  AveragerTeam team(test.spec, Parameters(test), InProcessGroup(2),
                    Initial(test));
  team.RunTo(9, 0);
  const HookState state = team.Save();
  const auto refuses = [&](const std::string& why,
                           const std::function<void(StateTensor&)>& damage) {
    HookState damaged = state;
    damage(damaged.tensors[0]);
    EXPECT_THAT(team.Load(damaged),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("'outer' of p0.weight"),
                               HasSubstr("does not fit"), HasSubstr(why))));
    EXPECT_EQ(SerializeHookState(team.Save()), SerializeHookState(state));
  };
  refuses("expected float32[", [](StateTensor& tensor) { tensor.data += "1"; });
  refuses("bytes of float64[",
          [](StateTensor& tensor) { tensor.dtype = DType::kFloat64; });
  refuses("1], expected float32[",
          [](StateTensor& tensor) { tensor.shape.push_back(1); });
  refuses("not finite", [](StateTensor& tensor) {
    tensor.data.replace(0, 4, std::string(4, '\xff'));
  });
}

TEST(DilocoTest, EachRankSavesItsShareOfTheState) {
  Case test = {"", "diloco(inner_steps=4)", 0,
               DilocoRule(0, 4, 0.7, 0.9, true)};
  AveragerTeam team(test.spec, Parameters(test), InProcessGroup(3),
                    Initial(test));
  team.RunTo(9, 0);
  size_t all = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_OK_AND_ASSIGN(const HookState shard, team.averager(rank).SaveState(
                                                    team.communicator(rank)));
    EXPECT_GE(shard.tensors.size(), 2 * (Parameters(test).size() / 3));
    all += shard.tensors.size();
  }
  EXPECT_EQ(all, 2 * Parameters(test).size());
}

TEST(DilocoTest, ConfiguredForAnotherModelItBeginsAnew) {
  const Group group = InProcessGroup(1);
  ASSERT_OK_AND_ASSIGN(const auto averager,
                       MakeAverager("diloco(inner_steps=1,outer_lr=1)"));
  for (const int64_t count : {1000, 3, 5}) {
    ParameterSpec parameter;
    parameter.name = "w";
    parameter.shape = {count};
    // The memory behind the values is not the averager's.
    std::vector<float> memory(2000, 1);
    const std::vector<Span> values = {
        {memory.data(), count, DType::kFloat32, {}}};
    ASSERT_OK(averager->Configure({parameter}, values, *group[0]));
    ASSERT_OK(averager->AfterOptimizerStep(values));
    EXPECT_EQ(memory, std::vector<float>(2000, 1)) << count;
  }
}

// Parameters of one size, which differ by their names and shapes only.
struct NamedValues {
  std::vector<ParameterSpec> parameters;
  std::vector<std::vector<float>> memory;

  void Add(const std::string& name, float value,
           std::vector<int64_t> shape = {2}) {
    ParameterSpec parameter;
    parameter.name = name;
    parameter.shape = std::move(shape);
    memory.emplace_back(static_cast<size_t>(parameter.count()), value);
    parameters.push_back(std::move(parameter));
  }
  std::vector<Span> spans() {
    std::vector<Span> result;
    for (std::vector<float>& values : memory) {
      result.push_back({values.data(),
                        static_cast<int64_t>(values.size()),
                        DType::kFloat32,
                        {}});
    }
    return result;
  }
};

// Returns a model of "a", which has the outer momentum 1 and the value 0, and
// "b", which stands at 100.
std::unique_ptr<Averager> DilocoOfTwo(Communicator& world) {
  auto averager = MakeAverager(
      "diloco(inner_steps=1,outer_lr=1,outer_momentum=0.5,nesterov=false)");
  EXPECT_OK(averager);
  NamedValues model;
  model.Add("a", 1);
  model.Add("b", 100);
  EXPECT_OK((*averager)->Configure(model.parameters, model.spans(), world));
  model.memory[0] = {0, 0};
  EXPECT_OK((*averager)->AfterOptimizerStep(model.spans()));
  EXPECT_EQ(model.memory[0][0], 0);
  EXPECT_EQ(model.memory[1][0], 100);
  return *std::move(averager);
}

TEST(DilocoTest, WhatItKeepsFollowsTheNamesWhenTheModelChanges) {
  const Group group = InProcessGroup(1);
  const auto averager = DilocoOfTwo(*group[0]);
  // In another order, and with a parameter more.
  for (const bool more : {false, true}) {
    NamedValues model;
    if (more) model.Add("late", 7);
    model.Add("b", 100);
    model.Add("a", more ? -0.5F : 0);
    ASSERT_OK(averager->Configure(model.parameters, model.spans(), *group[0]));
    ASSERT_OK(averager->AfterOptimizerStep(model.spans()));
    // The momentum halves, and nothing else moves.
    EXPECT_EQ(model.memory.back()[1], more ? -0.75F : -0.5F);
    EXPECT_EQ(model.memory[more ? 1 : 0][1], 100);
    EXPECT_EQ(model.memory[0][1], more ? 7 : 100);
  }
}

TEST(DilocoTest, AParameterOfAnotherShapeOrWithOtherValuesBeginsAnew) {
  const Group group = InProcessGroup(1);
  const auto averager = DilocoOfTwo(*group[0]);
  NamedValues model;
  model.Add("a", 0, {1, 2});
  model.Add("b", 30);
  ASSERT_OK(averager->Configure(model.parameters, model.spans(), *group[0]));
  ASSERT_OK(averager->AfterOptimizerStep(model.spans()));
  EXPECT_EQ(model.memory[0][1], 0);
  EXPECT_EQ(model.memory[1][1], 30);
}

TEST(DilocoTest, AParameterThatLeftAndCameBackBeginsAnew) {
  const Group group = InProcessGroup(1);
  const auto averager = DilocoOfTwo(*group[0]);
  NamedValues fewer;
  fewer.Add("b", 100);
  ASSERT_OK(averager->Configure(fewer.parameters, fewer.spans(), *group[0]));
  NamedValues model;
  model.Add("a", 5);
  model.Add("b", 100);
  ASSERT_OK(averager->Configure(model.parameters, model.spans(), *group[0]));
  ASSERT_OK(averager->AfterOptimizerStep(model.spans()));
  EXPECT_EQ(model.memory[0][1], 5);
  EXPECT_EQ(model.memory[1][1], 100);
}

TEST(AveragerTest, ValuesThatAreNotTheModelsAreRefused) {
  const Group group = InProcessGroup(1);
  ASSERT_OK_AND_ASSIGN(const auto averager, MakeAverager("post_local_sgd"));
  EXPECT_FALSE(averager->AfterOptimizerStep({}).ok());
  ParameterSpec parameter;
  parameter.name = "w";
  parameter.shape = {3};
  std::vector<float> memory(3);
  Span span;
  span.data = memory.data();
  span.count = 3;
  EXPECT_THAT(averager->Configure({parameter}, {}, *group[0]),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 par")));
  EXPECT_OK(averager->Configure({parameter}, {span}, *group[0]));
  span.count = 2;
  EXPECT_THAT(
      averager->AfterOptimizerStep({span}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter w")));
  EXPECT_EQ(averager->step(), 0);
  parameter.dtype = DType::kInt64;
  EXPECT_THAT(averager->Configure({parameter}, {span}, *group[0]),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("int64")));
}

TEST(AverageOverTest, PacksMoreThanOneChunkOfMixedTypes) {
  constexpr int kRanks = 2;
  const Group group = InProcessGroup(kRanks);
  std::vector<std::vector<float>> floats(kRanks,
                                         std::vector<float>(kMeanChunk + 5));
  std::vector<std::vector<double>> doubles(kRanks, std::vector<double>(7));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      auto& mine = floats[static_cast<size_t>(rank)];
      auto& wide = doubles[static_cast<size_t>(rank)];
      for (size_t i = 0; i < mine.size(); ++i) {
        mine[i] = static_cast<float>((i % 1000) * static_cast<size_t>(rank));
      }
      for (size_t i = 0; i < wide.size(); ++i) wide[i] = 3.0 * rank;
      std::vector<Span> values(3);
      values[0] = {mine.data(), kMeanChunk - 1, DType::kFloat32, {}};
      values[1] = {wide.data(), 7, DType::kFloat64, {}};
      values[2] = {mine.data() + kMeanChunk - 1, 6, DType::kFloat32, {}};
      ScratchPool scratch;
      EXPECT_OK(
          AverageOver(*group[static_cast<size_t>(rank)], values, scratch));
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < floats[0].size(); ++i) {
    ASSERT_EQ(floats[0][i], static_cast<float>(i % 1000) / 2) << i;
  }
  EXPECT_EQ(floats[1], floats[0]);
  EXPECT_EQ(doubles[0], std::vector<double>(7, 1.5));
  EXPECT_EQ(doubles[1], doubles[0]);
  // Two chunks of float32, one of float64.
  EXPECT_EQ(group[0]->sequence(), 3);
  EXPECT_EQ(group[0]->payload_bytes(), 4 * (kMeanChunk + 5) + 8 * 7);
}

TEST(AverageOverTest, ErrorsOfTheCommunicatorComeThrough) {
  const Group group = InProcessGroup(2);
  group[0]->Abort("no more");
  std::vector<float> memory(3);
  ScratchPool scratch;
  EXPECT_THAT(AverageOver(*group[0], {{memory.data(), 3, DType::kFloat32, {}}},
                          scratch),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("no more")));
}

// One bucket of 6 floats, exchanged by all ranks at once.
std::vector<std::vector<float>> ExchangeOnce(
    const Group& group, const std::vector<std::unique_ptr<Hook>>& hooks) {
  std::vector<std::vector<float>> data(group.size(), std::vector<float>(6));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::fill(data[rank].begin(), data[rank].end(), static_cast<float>(rank));
      Bucket bucket;
      bucket.last = true;
      bucket.data = {data[rank].data(), 6, DType::kFloat32, {}};
      bucket.gradients = {{0, 0, 6}};
      auto exchange = hooks[rank]->Prepare(bucket, *group[rank]);
      ASSERT_OK(exchange);
      for (;;) {
        auto work = (*exchange)->Advance();
        ASSERT_OK(work);
        if (*work == nullptr) break;
        ASSERT_OK((*work)->Wait(absl::Seconds(20)));
      }
      EXPECT_OK(hooks[rank]->Commit());
    });
  }
  for (auto& thread : threads) thread.join();
  return data;
}

// A level whose group is the whole job brings all ranks together.
TEST(HierarchicalSgdTest, UnitesWithTheSmallestLevelThatHasAllRanks) {
  const Group group = InProcessGroup(2);
  std::vector<std::thread> threads;
  for (const auto& communicator : group) {
    threads.emplace_back([&communicator] {
      ASSERT_OK_AND_ASSIGN(
          const auto averager,
          MakeAverager("hierarchical_sgd(levels=2x8+16xall,start_step=0)"));
      float memory[2] = {1, 2};
      const std::vector<Span> values = {{memory, 2, DType::kFloat32, {}}};
      ParameterSpec parameter;
      parameter.name = "w";
      parameter.shape = {2};
      ASSERT_OK(averager->Configure({parameter}, values, *communicator));
      for (int step = 0; step < 4; ++step) {
        EXPECT_EQ(averager->unites_next(), step % 2 == 0) << step;
        ASSERT_OK(averager->AfterOptimizerStep(values));
        EXPECT_EQ(averager->diverged(), step % 2 != 0) << step;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LocalGradientsTest, ReachesAllRanksBeforeTheStartAndItsSubgroupAfter) {
  const std::vector<std::pair<std::string, GradientReach>> cases = {
      {"diloco(start_step=1)", GradientReach::kOwn},
      {"hierarchical_sgd(start_step=1)", GradientReach::kOwn},
      {"stats(fp16(post_local_sgd(start_step=1)))", GradientReach::kOwn},
      {"post_local_sgd(start_step=1,subgroup=2)", GradientReach::kGroup},
      {"bf16(post_local_sgd(start_step=1,subgroup=4))", GradientReach::kAll},
      {"noop", GradientReach::kOwn},
      {"powersgd", GradientReach::kAll},
  };
  for (const auto& [spec, reach] : cases) {
    ASSERT_OK_AND_ASSIGN(const auto hook, MakeHook(spec));
    ASSERT_OK(hook->Configure({}, 4));
    const bool waits = hook->needs_averager();
    EXPECT_EQ(hook->reach(), waits ? GradientReach::kAll : reach) << spec;
    ASSERT_OK(hook->Commit());
    EXPECT_EQ(hook->reach(), reach) << spec;
  }
}

TEST(LocalGradientsTest, SubgroupsOverTcpAverageAmongThemselves) {
  const Group group = TcpGroup(5);
  ParameterSpec parameter;
  parameter.name = "w";
  parameter.shape = {6};
  std::vector<std::unique_ptr<Hook>> hooks;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    ASSERT_OK_AND_ASSIGN(
        auto hook, MakeHook("fp16(post_local_sgd(start_step=1,subgroup=2))"));
    ASSERT_OK(hook->Configure({parameter}, 5));
    hooks.push_back(std::move(hook));
  }
  for (const auto& values : ExchangeOnce(group, hooks)) {
    EXPECT_NEAR(values[0], 2, 0.01);
  }
  for (int step = 0; step < 3; ++step) {
    const auto local = ExchangeOnce(group, hooks);
    const std::vector<float> expected = {0.5, 0.5, 2.5, 2.5, 4};
    for (size_t rank = 0; rank < group.size(); ++rank) {
      EXPECT_EQ(local[rank], std::vector<float>(6, expected[rank]));
    }
  }
}

}  // namespace
}  // namespace coxswain
