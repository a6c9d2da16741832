#include "client/checkpoint/hook_cut.h"

#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/checkpoint/hook_choice.h"
#include "client/checkpoint/training_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRows = 7;
constexpr int64_t kColumns = 5;

ParameterSpec Spec(const std::string& name, std::vector<int64_t> shape) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  return spec;
}

HookParameter Whole(const std::string& name, std::vector<int64_t> shape) {
  return HookParametersOf({Spec(name, std::move(shape))}, {})[0];
}

// Part `index` of `parts` of a matrix.
HookParameter Part(const std::string& name, int dimension, int parts,
                   int index) {
  const std::vector<int64_t> shape = {kRows, kColumns};
  const Box box = *CutBox(shape, dimension, parts, index);
  const std::vector<int64_t> own = {box.end[0] - box.begin[0],
                                    box.end[1] - box.begin[1]};
  return HookParametersOf({Spec(name, own)}, {{name, {shape, box}}})[0];
}

StateTensor Tensor(const std::string& kind, const std::string& parameter,
                   std::vector<int64_t> shape,
                   const std::vector<float>& values) {
  StateTensor tensor;
  tensor.kind = kind;
  tensor.parameter = parameter;
  tensor.shape = std::move(shape);
  tensor.data.assign(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float));
  return tensor;
}

std::vector<float> Values(const StateTensor& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// The error of a part of the matrix whose elements are their numbers from 1 on.
StateTensor ErrorOf(const HookParameter& parameter, const char* kind) {
  std::vector<float> values;
  const Box& box = parameter.box.box;
  for (int64_t row = box.begin[0]; row < box.end[0]; ++row) {
    for (int64_t column = box.begin[1]; column < box.end[1]; ++column) {
      values.push_back(static_cast<float>(row * kColumns + column + 1));
    }
  }
  return Tensor(kind, parameter.spec.name, parameter.spec.shape, values);
}

PartState StateOf(std::vector<HookParameter> parameters,
                  std::vector<StateTensor> tensors) {
  PartState part;
  part.parameters = std::move(parameters);
  part.state.spec = "hook(rank=2)";
  part.state.step = 9;
  part.state.options = {{"rank", "2"}, {"parameters", "of the part"}};
  part.state.tensors = std::move(tensors);
  return part;
}

TEST(HookCutTest, ParametersAreReadBack) {
  const std::vector<HookParameter> parameters = {
      Whole("a scalar", {}), Part("layer.weight", 1, 3, 2), Whole("b", {3})};
  const std::string text = SerializeHookParameters(parameters);
  EXPECT_EQ(text,
            "float32 [] [] a scalar\n"
            "float32 [7,5] [0:7,4:5] layer.weight\n"
            "float32 [3] [0:3] b\n");
  ASSERT_OK_AND_ASSIGN(const std::vector<HookParameter> read,
                       ParseHookParameters(text));
  EXPECT_EQ(SerializeHookParameters(read), text);
  EXPECT_EQ(SpecsOf(read)[1].shape, (std::vector<int64_t>{7, 1}));
  EXPECT_EQ(SpecsOf(read)[0].name, "a scalar");
  for (const std::string damaged :
       {"float32", "float33 [3] [0:3] b", "float32 [3] b", "float32 [3] [0] b",
        "float32 [3] [0:4] b", "float32 [3] [2:1] b", "float32 [3,1] [0:3] b",
        "float32 [x] [0:3] b", "float32 3 [0:3] b"}) {
    EXPECT_THAT(ParseHookParameters(damaged),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(damaged)));
  }
}

TEST(HookCutTest, ErrorsFollowTheirElementsFromAnyDivisionToAnyOther) {
  struct Division {
    int dimension;
    int parts;
  };
  const std::vector<Division> divisions = {{0, 1}, {0, 2}, {0, 3}, {1, 2},
                                           {1, 3}, {0, 7}, {1, 5}};
  for (const Division& saved : divisions) {
    std::vector<PartState> from;
    for (int i = 0; i < saved.parts; ++i) {
      const HookParameter part = Part("w", saved.dimension, saved.parts, i);
      from.push_back(StateOf(
          {part}, {ErrorOf(part, "error/0"), ErrorOf(part, "error/1")}));
    }
    for (const Division& wanted : divisions) {
      SCOPED_TRACE(absl::StrCat(saved.parts, " along ", saved.dimension, " to ",
                                wanted.parts, " along ", wanted.dimension));
      for (int i = 0; i < wanted.parts; ++i) {
        const HookParameter to = Part("w", wanted.dimension, wanted.parts, i);
        ASSERT_OK_AND_ASSIGN(const HookCut cut, CutHookState(from, {to}));
        EXPECT_THAT(cut.dropped, IsEmpty());
        EXPECT_EQ(cut.state.spec, "hook(rank=2)");
        EXPECT_EQ(cut.state.step, 9);
        ASSERT_EQ(cut.state.tensors.size(), 2u);
        for (const StateTensor& tensor : cut.state.tensors) {
          const StateTensor expected = ErrorOf(to, tensor.kind.c_str());
          EXPECT_EQ(tensor.shape, to.spec.shape);
          EXPECT_TRUE(tensor.data == expected.data) << tensor.kind;
        }
      }
    }
  }
}

TEST(HookCutTest, WhatHasNoErrorIsZeroAndWhatNobodyHasIsLeftOut) {
  const HookParameter upper = Part("w", 0, 2, 0);
  const HookParameter lower = Part("w", 0, 2, 1);
  ASSERT_OK_AND_ASSIGN(
      const HookCut cut,
      CutHookState(
          {StateOf({upper}, {}), StateOf({lower}, {ErrorOf(lower, "error")})},
          {Whole("w", {kRows, kColumns}), Whole("new", {3})}));
  ASSERT_EQ(cut.state.tensors.size(), 1u);
  const std::vector<float> values = Values(cut.state.tensors[0]);
  const auto first = static_cast<size_t>(upper.spec.count());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(values[i], i < first ? 0 : static_cast<float>(i) + 1) << i;
  }
}

TEST(HookCutTest, FactorsStayWhereTheBoxDoes) {
  const HookParameter left = Part("w", 1, 2, 0);
  const HookParameter right = Part("w", 1, 2, 1);
  const HookParameter norm = Whole("norm", {2});
  const StateTensor q_left = Tensor("q", "w", {1, 3}, {1, 2, 3});
  const StateTensor q_right = Tensor("q", "w", {1, 2}, {4, 5});
  const StateTensor of_norm = Tensor("q", "norm", {1, 1}, {6});
  const StateTensor count = Tensor("count", "", {}, {7});
  const std::vector<PartState> from = {
      StateOf({left, norm}, {q_left, of_norm, count}),
      StateOf({right, norm}, {q_right, of_norm, count})};
  const auto kept = [](const HookCut& cut) {
    std::map<std::string, std::vector<float>> tensors;
    for (const StateTensor& tensor : cut.state.tensors) {
      tensors[absl::StrCat(tensor.kind, " ", tensor.parameter)] =
          Values(tensor);
    }
    return tensors;
  };
  using Kept = std::map<std::string, std::vector<float>>;
  ASSERT_OK_AND_ASSIGN(const HookCut same, CutHookState(from, {right, norm}));
  EXPECT_EQ(kept(same),
            (Kept{{"q w", {4, 5}}, {"q norm", {6}}, {"count ", {7}}}));
  EXPECT_THAT(same.dropped, IsEmpty()) << "the left one's q is not missed";
  ASSERT_OK_AND_ASSIGN(
      const HookCut other,
      CutHookState(from, {Part("w", 0, 2, 0), norm, Whole("more", {2})}));
  EXPECT_EQ(kept(other), (Kept{{"q norm", {6}}, {"count ", {7}}}));
  EXPECT_THAT(other.dropped, ElementsAre("q of w"));
}

TEST(HookCutTest, OfReplicasTheFirstCounts) {
  const HookParameter norm = Whole("norm", {2});
  ASSERT_OK_AND_ASSIGN(
      const HookCut cut,
      CutHookState({StateOf({norm}, {Tensor("error", "norm", {2}, {1, 2}),
                                     Tensor("q", "norm", {1}, {3})}),
                    StateOf({norm}, {Tensor("error", "norm", {2}, {4, 5}),
                                     Tensor("q", "norm", {1}, {6})})},
                   {norm}));
  ASSERT_EQ(cut.state.tensors.size(), 2u);
  EXPECT_EQ(Values(cut.state.tensors[0]), (std::vector<float>{1, 2}));
  EXPECT_EQ(Values(cut.state.tensors[1]), (std::vector<float>{3}));
}

TEST(HookCutTest, KindsThatAHookDeclaresItsOwnAreErrors) {
  const HookParameter upper = Part("w", 0, 2, 0);
  const HookParameter lower = Part("w", 0, 2, 1);
  std::vector<PartState> from = {
      StateOf({upper}, {ErrorOf(upper, "unsent"), ErrorOf(upper, "speed")}),
      StateOf({lower}, {ErrorOf(lower, "unsent"), ErrorOf(lower, "speed")})};
  for (PartState& part : from) part.state.options["own_kinds"] = "unsent,x";
  const HookParameter whole = Whole("w", {kRows, kColumns});
  ASSERT_OK_AND_ASSIGN(const HookCut cut, CutHookState(from, {whole}));
  ASSERT_EQ(cut.state.tensors.size(), 1u);
  EXPECT_TRUE(cut.state.tensors[0].data == ErrorOf(whole, "unsent").data);
  EXPECT_THAT(cut.dropped, ElementsAre("speed of w"));
  EXPECT_EQ(cut.state.options.at("own_kinds"), "unsent,x");
}

TEST(HookCutTest, StatesThatDoNotBelongTogetherAreRefused) {
  const HookParameter norm = Whole("norm", {2});
  const PartState first = StateOf({norm}, {});
  const auto refused = [&](const std::function<void(PartState&)>& change,
                           absl::string_view why) {
    PartState second = StateOf({norm}, {});
    change(second);
    EXPECT_THAT(
        CutHookState({first, second}, {norm}),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why)));
  };
  refused([](PartState& part) { part.state.spec = "other"; }, "the hook is");
  refused([](PartState& part) { part.state.step = 8; }, "the step is");
  refused([](PartState& part) { part.state.options["rank"] = "3"; },
          "rank is '2' in one and '3' in another");
  EXPECT_OK(CutHookState({first, StateOf({norm}, {})}, {norm}));
  EXPECT_THAT(
      CutHookState({}, {norm}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no rank")));
  const HookParameter larger = Whole("norm", {3});
  EXPECT_THAT(
      CutHookState({StateOf({norm}, {Tensor("error", "norm", {2}, {1, 2})})},
                   {larger}),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("norm")));
}

TEST(HookCutTest, PartsOverlapWhereTheyHaveElementsInCommon) {
  const HookParameter left = Part("w", 1, 2, 0);
  const HookParameter right = Part("w", 1, 2, 1);
  const HookParameter upper = Part("w", 0, 2, 0);
  const HookParameter norm = Whole("norm", {2});
  EXPECT_FALSE(Overlap({left}, {right}));
  EXPECT_TRUE(Overlap({left}, {upper}));
  EXPECT_TRUE(Overlap({left, norm}, {norm, right}));
  EXPECT_FALSE(Overlap({norm}, {left}));
  EXPECT_FALSE(Overlap({}, {left}));
}

TEST(HookChoiceTest, OnlyPartsThatTheReaderHasSomeOfAreReadAndKept) {
  const HookParameter left = Part("w", 1, 2, 0);
  const HookParameter right = Part("w", 1, 2, 1);
  const TrainingRank reader{0, 1, "new", {right}};
  HookChoice choice(reader, {"left", "left", "right", "right"}, /*own=*/true);
  EXPECT_FALSE(choice.of_part());
  const auto take = [&](int number, const HookParameter& parameter) {
    EXPECT_OK(choice.Take(number,
                          StateOf({}, {ErrorOf(parameter, "own_error")}).state,
                          SerializeHookParameters({parameter})));
  };
  EXPECT_TRUE(choice.Needs(0));
  take(0, left);
  EXPECT_FALSE(choice.Needs(1));
  for (const int number : {2, 3}) {
    EXPECT_TRUE(choice.Needs(number));
    take(number, right);
  }
  TrainingState state;
  EXPECT_OK(choice.Finish(&state));
  ASSERT_EQ(state.parts.size(), 1u);
  EXPECT_EQ(state.parts[0].states.size(), 2u);
  EXPECT_TRUE(state.parts[0].own);
  EXPECT_EQ(state.hook.step, 9);
}

// As checkpoints of an earlier version.
TEST(HookChoiceTest, WhatIsNotDescribedIsNotCut) {
  const HookParameter whole = Whole("w", {kRows, kColumns});
  const TrainingRank reader{0, 1, "new", {whole}};
  HookChoice choice(reader, {"one", "other"}, /*own=*/true);
  for (const int number : {0, 1}) {
    EXPECT_TRUE(choice.Needs(number));
    EXPECT_OK(choice.Take(number,
                          StateOf({}, {ErrorOf(whole, "own_error")}).state,
                          /*described=*/""));
  }
  TrainingState state;
  EXPECT_OK(choice.Finish(&state));
  EXPECT_THAT(state.parts, IsEmpty());
  EXPECT_THAT(state.own, IsEmpty());
  EXPECT_EQ(state.hook.tensors.size(), 1u) << "so that its loss is known";
}

// A state without tensors, as before a low-rank hook begins to compress, names
// the parameters of its part all the same.
TEST(HookChoiceTest, AStateThatOnlyNamesItsParametersIsCut) {
  const TrainingRank reader{0, 1, "new", {Whole("w", {2})}};
  for (const bool own : {false, true}) {
    SCOPED_TRACE(own);
    HookChoice choice(reader, {"one"}, own);
    HookState saved = StateOf({}, {}).state;
    saved.options["parameters"] = "v float32[3]\n";
    EXPECT_OK(choice.Take(0, saved, /*described=*/""));
    TrainingState state;
    EXPECT_OK(choice.Finish(&state));
    ASSERT_EQ(state.parts.size(), 1u);
    EXPECT_FALSE(state.parts[0].own);
    ASSERT_OK_AND_ASSIGN(
        const HookCut cut,
        CutHookState({{state.parts[0].parameters, state.parts[0].states[0]}},
                     reader.parameters));
    EXPECT_EQ(cut.state.step, saved.step);
    EXPECT_THAT(cut.state.tensors, IsEmpty());
  }
}

TEST(HookChoiceTest, ADamagedDescriptionIsDataLoss) {
  const TrainingRank reader{0, 1, "new", {Whole("w", {2})}};
  HookChoice choice(reader, {"one"}, /*own=*/true);
  EXPECT_THAT(choice.Take(0, HookState(), "float32 [2] w"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[2] w")));
}

}  // namespace
}  // namespace coxswain
