// What a checkpoint of a divided model rests on: errors that each rank's hook
// has of its part of the model follow their elements to ranks that divide it
// otherwise, along pp, dp and tp.

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/checkpoint/hook_cut.h"
#include "client/checkpoint/training_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"

namespace coxswain::any_division_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kSavedAt = 4;
constexpr int64_t kEnd = 8;
constexpr uint64_t kStream = 37;
// Gradients of so many parts of the data; a rank has the mean of some.
constexpr int kData = 12;

// A parameter of the whole model, and how it is divided.
struct Whole {
  ParameterSpec spec;
  int stage = 0;  // of two
  int dimension = -1;
};

std::vector<Whole> Model(DType dtype) {
  std::vector<Whole> model;
  const auto add = [&](const char* name, std::vector<int64_t> shape, int stage,
                       int dimension) {
    ParameterSpec spec;
    spec.name = name;
    spec.shape = std::move(shape);
    spec.dtype = dtype;
    model.push_back({std::move(spec), stage, dimension});
  };
  add("up.weight", {29, 24}, 0, 0);
  add("up.bias", {29}, 0, 0);
  add("down.weight", {24, 29}, 0, 1);
  add("down.bias", {24}, 0, -1);
  add("square", {12, 12}, 1, -1);
  add("conv", {23, 5, 5}, 1, 0);
  add("head.weight", {26, 24}, 1, 0);
  return model;
}

std::vector<ParameterSpec> SpecsOf(const std::vector<Whole>& model) {
  std::vector<ParameterSpec> specs;
  for (const Whole& one : model) specs.push_back(one.spec);
  return specs;
}

struct Axes {
  int pp = 1;
  int dp = 1;
  int tp = 1;
};
std::string ToString(const Axes& axes) {
  return absl::StrCat("pp=", axes.pp, ",dp=", axes.dp, ",tp=", axes.tp);
}

// The hooks of all ranks of a mesh.
class Divided {
 public:
  Divided(const std::string& spec, DType dtype, const Axes& axes)
      : spec_(spec), model_(Model(dtype)), axes_(axes) {
    for (int stage = 0; stage < axes.pp; ++stage) {
      for (int index = 0; index < axes.tp; ++index) Make(stage, index);
    }
  }

  // Takes steps [from, to), and returns the sum of their averages.
  Gradients Run(int64_t from, int64_t to) {
    Gradients sum = Zeros();
    for (int64_t step = from; step < to; ++step) {
      std::vector<Gradients> whole;
      for (int rank = 0; rank < axes_.dp; ++rank) {
        whole.push_back(LocalOf(rank, step));
      }
      Gradients first = Zeros();
      for (Part& part : parts_) {
        std::vector<Gradients> local;
        for (const Gradients& one : whole) local.push_back(CutOf(one, part));
        Gradients averages = Zeros();
        Paste(part.world.Step(local), part, &averages);
        if (part.index == 0) AddTo(first, averages);
        for (const size_t i : part.numbers) {
          if (part.index > 0 && model_[i].dimension < 0) {
            EXPECT_EQ(averages[i], first[i]) << "what all have has equal bits";
            continue;
          }
          for (size_t j = 0; j < averages[i].size(); ++j) {
            sum[i][j] += averages[i][j];
          }
        }
      }
    }
    return sum;
  }

  // Returns what has not been sent, as a mean over the replicas.
  Gradients Unsent() {
    Gradients all = Zeros();
    for (Part& part : parts_) {
      Paste(MeanError(part.world.Save(), coxswain::SpecsOf(part.parameters),
                      axes_.dp),
            part, &all);
    }
    return all;
  }

  std::vector<SavedHookPart> Save() {
    std::vector<SavedHookPart> saved;
    for (Part& part : parts_) {
      saved.push_back({part.parameters, {}, /*own=*/true});
      for (int rank = 0; rank < axes_.dp; ++rank) {
        saved.back().states.push_back(part.world.SaveOwn(rank));
      }
    }
    return saved;
  }

  void Load(const std::vector<SavedHookPart>& saved) {
    for (Part& part : parts_) {
      TrainingState state;
      state.of_part = false;
      for (const SavedHookPart& one : saved) {
        if (Overlap(one.parameters, part.parameters)) {
          state.parts.push_back(one);
        }
      }
      for (int rank = 0; rank < axes_.dp; ++rank) {
        EXPECT_OK(LoadHook(
            state, {rank, axes_.dp, "this", part.parameters},
            coxswain::SpecsOf(part.parameters),
            [this] { return MakeHook(spec_); }, part.world.hook(rank)));
        EXPECT_EQ(part.world.hook(rank).step(), kSavedAt);
      }
    }
  }

 private:
  struct Part {
    std::vector<size_t> numbers;  // of its parameters, in the model
    std::vector<HookParameter> parameters;
    int index = 0;  // along tp
    HookWorld world;
  };

  void Make(int stage, int index) {
    std::vector<size_t> numbers;
    std::vector<HookParameter> parameters;
    for (size_t i = 0; i < model_.size(); ++i) {
      const Whole& whole = model_[i];
      if (whole.stage * axes_.pp / 2 != stage) continue;
      numbers.push_back(i);
      HookParameter one = HookParametersOf({whole.spec}, {})[0];
      if (whole.dimension >= 0) {
        one.box.box =
            *CutBox(whole.spec.shape, whole.dimension, axes_.tp, index);
        const auto d = static_cast<size_t>(whole.dimension);
        one.spec.shape[d] = one.box.box.end[d] - one.box.box.begin[d];
      }
      parameters.push_back(std::move(one));
    }
    // What all ranks along tp have is in buckets of its own, alike on all.
    HookWorld::Buckets buckets(1);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int number = static_cast<int>(i);
      if (model_[numbers[i]].dimension < 0) {
        buckets.push_back({number});
      } else {
        buckets[0].push_back(number);
      }
    }
    HookWorld world(spec_, coxswain::SpecsOf(parameters), axes_.dp,
                    std::move(buckets));
    parts_.push_back(
        {std::move(numbers), std::move(parameters), index, std::move(world)});
  }

  Gradients Zeros() const {
    Gradients zeros;
    for (const Whole& one : model_) {
      zeros.emplace_back(static_cast<size_t>(one.spec.count()), 0.0);
    }
    return zeros;
  }

  // Those of a rank: the mean over its share of the data.
  Gradients LocalOf(int rank, int64_t step) const {
    const std::vector<ParameterSpec> specs = SpecsOf(model_);
    const int share = kData / axes_.dp;
    Gradients mean = Zeros();
    for (int i = 0; i < share; ++i) {
      AddTo(mean, NormalGradients(specs, kStream, rank * share + i, step),
            1.0 / share);
    }
    return mean;
  }

  // Calls copy(parameter of the whole, element of it, parameter of the part,
  // element of that).
  void ForEach(
      const Part& part,
      const std::function<void(size_t, size_t, size_t, size_t)>& copy) const {
    for (size_t own = 0; own < part.numbers.size(); ++own) {
      const size_t number = part.numbers[own];
      const ParameterSpec& spec = model_[number].spec;
      for (const PieceRun& run : Intersect(
               TensorPiece::Whole("", "", spec.dtype, spec.shape),
               TensorPiece::Of("", "", spec.dtype, part.parameters[own].box))) {
        for (int64_t i = 0; i < run.count; ++i) {
          copy(number, static_cast<size_t>(run.from + i), own,
               static_cast<size_t>(run.to + i));
        }
      }
    }
  }
  Gradients CutOf(const Gradients& whole, const Part& part) const {
    Gradients cut;
    for (const HookParameter& one : part.parameters) {
      cut.emplace_back(static_cast<size_t>(one.spec.count()));
    }
    ForEach(part, [&](size_t number, size_t from, size_t own, size_t to) {
      cut[own][to] = whole[number][from];
    });
    return cut;
  }
  void Paste(const Gradients& cut, const Part& part, Gradients* whole) const {
    ForEach(part, [&](size_t number, size_t to, size_t own, size_t from) {
      (*whole)[number][to] = cut[own][from];
    });
  }

  const std::string spec_;
  const std::vector<Whole> model_;
  const Axes axes_;
  std::vector<Part> parts_;
};

const std::vector<Axes>& Meshes() {
  static const auto* const meshes = new std::vector<Axes>{
      {2, 2, 2}, {1, 1, 1}, {1, 4, 1}, {1, 1, 4}, {2, 1, 1}, {1, 2, 3}};
  return *meshes;
}

Gradients Sum(const Gradients& a, const Gradients& b) {
  Gradients sum = a;
  AddTo(sum, b);
  return sum;
}

class AnyDivision : public testing::TestWithParam<const char*> {};

// As they are numbers of elements, cutting them changes no bit; and what their
// mean is multiplied by, and divided by again, are powers of 2.
TEST_P(AnyDivision, WhatIsUnsentIsTheSameBitByBit) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64}) {
    for (const Axes& from : Meshes()) {
      Divided before(GetParam(), dtype, from);
      before.Run(0, kSavedAt);
      const Gradients unsent = before.Unsent();
      const std::vector<SavedHookPart> saved = before.Save();
      double norm = 0;
      for (const auto& values : unsent) {
        for (const double value : values) norm += value * value;
      }
      EXPECT_GT(norm, 0) << "it can tell";
      for (const Axes& to : Meshes()) {
        SCOPED_TRACE(absl::StrCat(ToString(from), " to ", ToString(to)));
        Divided after(GetParam(), dtype, to);
        after.Load(saved);
        if (std::string(GetParam()) != "int8" || from.dp == to.dp) {
          EXPECT_EQ(after.Unsent(), unsent);
        } else {  // a mean over the ranks of errors that are the same
          EXPECT_LE(RelativeDifference(after.Unsent(), unsent), 1e-7);
        }
      }
    }
  }
}

TEST_P(AnyDivision, NothingIsLost) {
  const Gradients all = [] {
    Divided plain("allreduce", DType::kFloat64, {1, 1, 1});
    return plain.Run(0, kEnd);
  }();
  for (const Axes& from : Meshes()) {
    for (const Axes& to : Meshes()) {
      SCOPED_TRACE(absl::StrCat(ToString(from), " to ", ToString(to)));
      Divided before(GetParam(), DType::kFloat64, from);
      const Gradients first = before.Run(0, kSavedAt);
      Divided after(GetParam(), DType::kFloat64, to);
      after.Load(before.Save());
      const Gradients later = after.Run(kSavedAt, kEnd);
      const Gradients sent = Sum(first, later);
      EXPECT_LE(RelativeDifference(Sum(sent, after.Unsent()), all), 1e-12);
      EXPECT_GT(RelativeDifference(sent, all), 1e-3) << "it can tell";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hooks, AnyDivision,
                         testing::Values("powersgd(rank=2,start_step=2)",
                                         "acp_sgd(rank=2,start_step=2)",
                                         "batched_powersgd(start_step=2)",
                                         "int8"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           const std::string spec = info.param;
                           return spec.substr(0, spec.find('('));
                         });

// Parts of the same tensors go on with their factors, whatever stage they are
// on now.
TEST(AnyDivisionTest, OtherStagesGoOnAsIfNothingHadHappened) {
  for (const char* spec :
       {"powersgd(rank=2,start_step=2)", "acp_sgd(rank=2,start_step=2)"}) {
    for (const int pp : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(spec, " from pp=", pp));
      Divided before(spec, DType::kFloat64, {pp, 2, 2});
      before.Run(0, kSavedAt);
      Divided after(spec, DType::kFloat64, {3 - pp, 4, 2});
      testing::internal::CaptureStderr();
      after.Load(before.Save());
      const std::string log = testing::internal::GetCapturedStderr();
      EXPECT_THAT(log, HasSubstr("hook_state_cut"));
      EXPECT_THAT(log, Not(HasSubstr("q of")));
      EXPECT_LE(RelativeDifference(after.Run(kSavedAt, kEnd),
                                   before.Run(kSavedAt, kEnd)),
                1e-12);
    }
  }
}

TEST(AnyDivisionTest, FactorsOfOtherPartsBeginAnewAndTheLogNamesThem) {
  Divided before("powersgd(rank=2,start_step=2)", DType::kFloat64, {1, 1, 2});
  before.Run(0, kSavedAt);
  Divided after("powersgd(rank=2,start_step=2)", DType::kFloat64, {1, 1, 1});
  testing::internal::CaptureStderr();
  after.Load(before.Save());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("q of up.weight"));
  EXPECT_THAT(log, HasSubstr("q of down.weight"));
  EXPECT_THAT(log, Not(HasSubstr("q of square"))) << "all had all of it";
}

// Of a part that is not compressed a hook keeps no error.
TEST(AnyDivisionTest, AnErrorThatNoPartCanHaveIsDroppedAloneAndNamed) {
  const Axes all = {1, 1, 1};
  const Axes thin = {1, 1, 12};
  for (const char* spec :
       {"powersgd(rank=2,start_step=2)", "acp_sgd(rank=2,start_step=2)"}) {
    Divided before(spec, DType::kFloat64, all);
    before.Run(0, kSavedAt);
    Gradients expected = before.Unsent();
    Divided after(spec, DType::kFloat64, thin);
    testing::internal::CaptureStderr();
    after.Load(before.Save());
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("hook_errors_lost"));
    EXPECT_THAT(log, HasSubstr("error of up.weight"));
    EXPECT_THAT(log, Not(HasSubstr("error of square")));
    const Gradients unsent = after.Unsent();
    EXPECT_EQ(unsent[4], expected[4]) << "square";
    EXPECT_EQ(unsent[0], std::vector<double>(expected[0].size()));
  }
}

}  // namespace
}  // namespace coxswain::any_division_test
