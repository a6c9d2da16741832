#include "hooks/int8/int8.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/registry/registry.h"
#include "tests/conformance/hook_world.h"

namespace coxswain::int8_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kStream = 23;

std::vector<ParameterSpec> Parameters(DType dtype,
                                      const std::vector<int64_t>& counts) {
  std::vector<ParameterSpec> parameters;
  for (const int64_t count : counts) {
    parameters.push_back(
        {absl::StrCat("p", parameters.size()), {count}, dtype, Device(), {}});
  }
  return parameters;
}

std::vector<Gradients> Local(const std::vector<ParameterSpec>& parameters,
                             int size, int64_t step) {
  std::vector<Gradients> local;
  for (int rank = 0; rank < size; ++rank) {
    local.push_back(NormalGradients(parameters, kStream, rank, step));
  }
  return local;
}

double Largest(const Gradients& gradients) {
  double largest = 0;
  for (const auto& values : gradients) {
    for (const double value : values) {
      largest = std::max(largest, std::abs(value));
    }
  }
  return largest;
}

Gradients Difference(Gradients a, const Gradients& b) {
  AddTo(a, b, -1);
  return a;
}

// A hook that it does not own, so that it can go from one world to
// another.
class BorrowedHook : public Hook {
 public:
  explicit BorrowedHook(Hook* hook) : hook_(*hook) {}

  std::string spec() const override { return hook_.spec(); }
  absl::Status Configure(const std::vector<ParameterSpec>& parameters,
                         int world_size) override {
    return hook_.Configure(parameters, world_size);
  }
  absl::StatusOr<std::unique_ptr<Exchange>> Prepare(
      const Bucket& bucket, Communicator& communicator) override {
    return hook_.Prepare(bucket, communicator);
  }
  absl::Status Commit() override { return hook_.Commit(); }
  void Rollback() override { hook_.Rollback(); }
  int64_t step() const override { return hook_.step(); }
  absl::StatusOr<HookState> SaveState(Communicator& communicator) override {
    return hook_.SaveState(communicator);
  }
  absl::Status LoadState(const HookState& state, int rank,
                         int world_size) override {
    return hook_.LoadState(state, rank, world_size);
  }

 private:
  Hook& hook_;
};

std::vector<std::unique_ptr<Hook>> MakeHooks(const std::string& spec,
                                             size_t count) {
  std::vector<std::unique_ptr<Hook>> hooks;
  for (size_t i = 0; i < count; ++i) {
    auto hook = MakeHook(spec);
    EXPECT_OK(hook);
    hooks.push_back(*std::move(hook));
  }
  return hooks;
}

// Returns a world of the hooks with these numbers.
HookWorld WorldOf(const std::vector<std::unique_ptr<Hook>>& hooks,
                  const std::vector<size_t>& numbers,
                  const std::vector<ParameterSpec>& parameters) {
  size_t next = 0;
  return HookWorld(
      [&]() -> std::unique_ptr<Hook> {
        return std::make_unique<BorrowedHook>(hooks[numbers[next++]].get());
      },
      parameters, static_cast<int>(numbers.size()));
}

TEST(Int8Test, PayloadIsASliceMoreThanTheQuantisedBucket) {
  // 1000 elements on 3 ranks: 2 blocks of 256 for each.
  EXPECT_EQ(Int8SliceBlocks(1000, 3, 256), 2);
  EXPECT_EQ(Int8PayloadBytes(1000, 3, 256), 4 * 2 * 260);
  EXPECT_EQ(Int8PayloadBytes(768, 3, 256), 4 * 260);
  EXPECT_EQ(Int8PayloadBytes(769, 3, 256), 4 * 2 * 260);
  EXPECT_EQ(Int8PayloadBytes(1, 8, 32), 9 * 36);
  EXPECT_EQ(Int8PayloadBytes(0, 8, 32), 0);
  for (const int64_t count : {0, 1, 96, 97, 1000}) {
    const auto parameters = Parameters(DType::kFloat32, {count});
    HookWorld world("int8(block=32)", parameters, 3);
    for (int64_t step = 0; step < 2; ++step) {
      const int64_t before = world.payload_bytes();
      world.Step(Local(parameters, 3, step));
      EXPECT_EQ(world.payload_bytes() - before, Int8PayloadBytes(count, 3, 32));
    }
  }
}

TEST(Int8Test, ABucketThatIsNotFiniteCostsAnInt32PerRank) {
  const auto parameters = Parameters(DType::kFloat32, {10, 20});
  HookWorld world("int8", parameters, 3);
  auto local = Local(parameters, 3, 0);
  local[2][1][19] = std::nan("");
  world.Exchange(local);
  EXPECT_EQ(world.payload_bytes(), Int8PayloadBytes(30, 3, 256) + 3 * 4);
  ASSERT_EQ(world.NonFinite().size(), 1u);
  EXPECT_EQ(world.NonFinite()[0].rank, 2);
  EXPECT_EQ(world.NonFinite()[0].parameter, "p1");
}

// Each rank's gradients are finite, their sum is not.
TEST(Int8Test, AnOverflowingSumPoisonsTheStepAndNamesNoRank) {
  const auto parameters = Parameters(DType::kFloat32, {3});
  HookWorld world("int8", parameters, 2);
  HookWorld untouched("int8", parameters, 2);
  const auto first = Local(parameters, 2, 0);
  EXPECT_EQ(world.Step(first), untouched.Step(first));
  const Gradients large = {{3e38, 0, 1}};
  const Gradients result = world.Step({large, large});
  for (const double value : result[0]) EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(world.NonFinite().empty());
  const auto next = Local(parameters, 2, 1);
  EXPECT_EQ(world.Step(next), untouched.Step(next));
}

// What is sent and what is kept add up to what there was: with rebucketing,
// rollbacks and steps that are not finite in between, and at any world size.
void ExpectNothingIsLost(DType dtype, double tolerance) {
  const auto parameters = Parameters(dtype, {100, 0, 1, 700, 33, 256, 5});
  const std::vector<HookWorld::Buckets> layouts = {
      {{6, 5, 4, 3}, {2, 1, 0}},
      {{0, 1, 2, 3, 4, 5, 6}},
      {{3}, {0, 2}, {4}, {6, 5}, {1}},
  };
  for (const int size : {1, 2, 3, 7}) {
    HookWorld world("int8(block=64)", parameters, size, layouts[0]);
    Gradients sent, averages;
    for (int64_t step = 0; step < 30; ++step) {
      const auto local = Local(parameters, size, step);
      if (step % 4 == 3) {
        world.Rebucket(layouts[static_cast<size_t>(step / 4) % 3]);
      }
      if (step % 5 == 4) {
        auto bad = local;
        bad[0][3][5] = std::numeric_limits<double>::infinity();
        world.Exchange(bad);
        world.Rollback();
      }
      AddTo(sent, world.Step(local));
      AddTo(averages, MeanOver(local));
      Gradients whole = MeanError(world.Save(), parameters, size);
      AddTo(whole, sent);
      ASSERT_LE(RelativeDifference(whole, averages), tolerance)
          << "step " << step << " of " << size << " ranks";
    }
  }
}

TEST(Int8Test, NothingIsLost) {
  // Inputs and sums are rounded to float: each about 3e-8 of an element.
  ExpectNothingIsLost(DType::kFloat32, 3e-7);
  ExpectNothingIsLost(DType::kFloat64, 1e-15);
}

// Adds E1 / size + E2 of rank `from` of 3 that saved `state`, whose only
// parameter has this many elements.
void AddErrorsOf(const HookState& state, int from, int size,
                 std::vector<double>& sum) {
  for (const StateTensor& tensor : state.tensors) {
    const std::vector<double> values = ValuesOf(tensor);
    if (tensor.kind == absl::StrCat("error/", from)) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i] / size;
    }
    absl::string_view begin = tensor.kind;
    if (!absl::ConsumePrefix(&begin, absl::StrCat("slice/", from, "/"))) {
      continue;
    }
    size_t first = 0;
    EXPECT_TRUE(absl::SimpleAtoi(begin, &first));
    // The error holds 3 E2 besides E1.
    for (size_t i = 0; i < values.size() / 2; ++i) {
      sum[first + i] += values[values.size() / 2 + i] * (1 - 3.0 / size);
    }
  }
}

// Rank 0 of 3 leaves; then a fresh rank joins the others. Slices change their
// owners each time, and the errors of the average go on counting in full.
TEST(Int8Test, ErrorsOfTheAverageSurviveAnotherWorldSize) {
  const auto parameters = Parameters(DType::kFloat64, {1000});
  const auto hooks = MakeHooks("int8(block=64)", 4);
  HookWorld first = WorldOf(hooks, {0, 1, 2}, parameters);
  for (int64_t step = 0; step < 5; ++step)
    first.Step(Local(parameters, 3, step));
  const HookState saved = first.Save();
  for (const auto& members :
       std::vector<std::vector<size_t>>{{1, 2}, {3, 1, 2}}) {
    const int size = static_cast<int>(members.size());
    HookWorld world = WorldOf(hooks, members, parameters);
    if (size == 3) {  // the fresh rank comes to the others' step
      HookState fresh = saved;
      fresh.tensors.clear();
      fresh.step = world.hook(1).step();
      EXPECT_OK(world.hook(0).LoadState(fresh, 0, size));
    }
    Gradients owed = MeanError(world.Save(), parameters, size);
    if (size == 2) {
      Gradients expected(1, std::vector<double>(1000, 0.0));
      AddErrorsOf(saved, 1, 2, expected[0]);
      AddErrorsOf(saved, 2, 2, expected[0]);
      EXPECT_LE(RelativeDifference(owed, expected), 1e-14);
    }
    Gradients sent;
    for (int64_t step = 5; step < 10; ++step) {
      const auto local = Local(parameters, size, step);
      AddTo(sent, world.Step(local));
      AddTo(owed, MeanOver(local));
    }
    AddTo(sent, MeanError(world.Save(), parameters, size));
    EXPECT_LE(RelativeDifference(sent, owed), 1e-14) << size;
  }
}

TEST(Int8Test, ErrorsStayBounded) {
  const auto parameters = Parameters(DType::kFloat32, {150, 100});
  HookWorld world("int8(block=32)", parameters, 2);
  double largest_error = 0;
  Gradients sent, averages;
  for (int64_t step = 0; step < 1000; ++step) {
    const auto local = Local(parameters, 2, step);
    AddTo(sent, world.Step(local));
    AddTo(averages, MeanOver(local));
    // Half a code of each stage's scale, which is that of a gradient of less
    // than 6 standard deviations and an error.
    largest_error =
        std::max(largest_error, Largest(Difference(sent, averages)));
    ASSERT_LE(largest_error, 2 * 0.5 * 6.05 / 127) << "step " << step;
  }
  // It is an error, not a lack of one.
  EXPECT_GT(largest_error, 0.01);
}

TEST(Int8Test, WithoutFeedbackNothingIsKept) {
  const auto parameters = Parameters(DType::kFloat32, {300});
  HookWorld world("int8(error_feedback=false)", parameters, 2);
  const auto local = Local(parameters, 2, 0);
  const Gradients result = world.Step(local);
  EXPECT_EQ(world.Step(local), result);
  EXPECT_TRUE(world.Save().tensors.empty());
  EXPECT_NE(result, MeanOver(local));
}

// The hook's formulas as they stand in its header, in double, for one bucket.
class Emulation {
 public:
  Emulation(int64_t count, int size, int64_t block)
      : size_(size), block_(block) {
    slice_ = Int8SliceBlocks(count, size, block) * block;
    const auto whole = static_cast<size_t>(slice_ * size);
    local_.assign(static_cast<size_t>(size), std::vector<double>(whole, 0.0));
    average_.assign(whole, 0.0);
  }

  // Goes on from what the hooks saved.
  void Resume(const HookState& state) {
    std::vector<size_t> first = {0, 300, 301};
    for (const char* kind : {"error/", "slice/"}) {
      for (const StateTensor& tensor : state.tensors) {
        absl::string_view rest = tensor.kind;
        if (!absl::ConsumePrefix(&rest, kind)) continue;
        const std::vector<std::string> numbers = absl::StrSplit(rest, '/');
        size_t at = first[std::stoul(tensor.parameter.substr(1))];
        auto to = local_[std::stoul(numbers[0])].begin();
        const std::vector<double> values = ValuesOf(tensor);
        if (numbers.size() == 1) {
          std::copy(values.begin(), values.end(), to + at);
          continue;
        }
        at += std::stoul(numbers[1]);
        const auto half = values.begin() + values.size() / 2;
        std::copy(values.begin(), half, to + at);
        std::copy(half, values.end(), average_.begin() + at);
      }
    }
  }

  // `local[r]` is rank r's bucket.
  std::vector<double> Step(const std::vector<std::vector<double>>& local) {
    std::vector<double> sum(average_.size(), 0.0);
    for (size_t rank = 0; rank < local.size(); ++rank) {
      std::vector<double>& error = local_[rank];
      for (size_t i = 0; i < local[rank].size(); ++i)
        error[i] += local[rank][i];
      const std::vector<double> sent = Quantised(error);
      for (size_t i = 0; i < sent.size(); ++i) {
        sum[i] += sent[i];
        error[i] -= sent[i];
      }
    }
    for (size_t i = 0; i < sum.size(); ++i) average_[i] += sum[i] / size_;
    std::vector<double> result = Quantised(average_);
    for (size_t i = 0; i < sum.size(); ++i) average_[i] -= result[i];
    result.resize(local[0].size());
    return result;
  }

 private:
  std::vector<double> Quantised(const std::vector<double>& x) const {
    std::vector<double> values;
    for (size_t first = 0; first < x.size(); first += Block()) {
      double largest = 0;
      for (size_t i = first; i < first + Block(); ++i) {
        largest = std::max(largest, std::abs(x[i]));
      }
      const double scale = static_cast<float>(largest / 127);
      for (size_t i = first; i < first + Block(); ++i) {
        values.push_back(scale > 0 ? std::nearbyint(x[i] * (1 / scale)) * scale
                                   : 0);
      }
    }
    return values;
  }
  size_t Block() const { return static_cast<size_t>(block_); }

  const int size_;
  const int64_t block_;
  int64_t slice_ = 0;
  std::vector<std::vector<double>> local_;
  std::vector<double> average_;
};

constexpr int64_t kCounts[] = {300, 1, 77};
constexpr int64_t kCount = 378;

// All values of a rank, as they are in a bucket of that type.
std::vector<double> Flat(const Gradients& gradients, DType dtype) {
  std::vector<double> bucket;
  for (const auto& values : gradients) {
    for (const double value : values) {
      bucket.push_back(
          dtype == DType::kFloat64 ? value : double{static_cast<float>(value)});
    }
  }
  return bucket;
}

// Returns the relative distances of 200 steps from the emulation; where
// `resume`, of each step from the state that the hook had before.
std::vector<double> DistancesFromEmulation(DType dtype, int size, bool resume) {
  const auto parameters =
      Parameters(dtype, {std::begin(kCounts), std::end(kCounts)});
  HookWorld world("int8(block=48)", parameters, size, {{0, 1, 2}});
  Emulation emulation(kCount, size, 48);
  std::vector<double> distances;
  for (int64_t step = 0; step < 200; ++step) {
    if (resume) emulation.Resume(world.Save());
    const auto local = Local(parameters, size, step);
    std::vector<std::vector<double>> buckets;
    for (const Gradients& own : local) buckets.push_back(Flat(own, dtype));
    const auto result = Flat(world.Step(local), DType::kFloat64);
    distances.push_back(
        RelativeDifference({result}, {emulation.Step(buckets)}));
  }
  return distances;
}

TEST(Int8Test, Float64EqualsItsEmulation) {
  for (const int size : {1, 2, 4}) {
    for (const double distance :
         DistancesFromEmulation(DType::kFloat64, size, false)) {
      ASSERT_LE(distance, 1e-14) << size;
    }
  }
}

// A rounding in float turns a code the other way now and then. Such an element
// goes its own way from then on, so each step is compared from the hook's own
// state. A code is worth 2.5 / 127 of a standard deviation, 0.001 of the norm
// of 378 elements.
TEST(Int8Test, EachFloat32StepEqualsItsEmulation) {
  for (const int size : {1, 2, 4}) {
    int turned = 0;
    for (const double distance :
         DistancesFromEmulation(DType::kFloat32, size, true)) {
      ASSERT_LE(distance, 0.003) << size;
      if (distance > 1e-6) ++turned;
    }
    EXPECT_LE(turned, 10) << size;
  }
}

TEST(Int8Test, OtherWorldSizesGoOnFromTheMeanError) {
  const auto parameters = Parameters(DType::kFloat32, {500, 3});
  HookWorld world("int8", parameters, 3);
  for (int64_t step = 0; step < 4; ++step)
    world.Step(Local(parameters, 3, step));
  const HookState saved = world.Save();
  const Gradients mean = MeanError(saved, parameters, 3);
  for (const int size : {1, 2, 5}) {
    HookWorld other("int8", parameters, size);
    ASSERT_OK(other.Load(saved));
    EXPECT_LE(
        RelativeDifference(MeanError(other.Save(), parameters, size), mean),
        1e-6);
  }
}

std::string LoadError(HookWorld& world, const HookState& state) {
  const absl::Status status = world.Load(state);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  return std::string(status.message());
}

TEST(Int8Test, ALaterStartKeepsTheErrorsOfTheLoadedState) {
  const auto parameters = OddParameters(DType::kFloat32);
  HookWorld world("int8", parameters, 2);
  for (int64_t step = 0; step < 3; ++step) {
    world.Step({NormalGradients(parameters, 1, 0, step),
                NormalGradients(parameters, 1, 1, step)});
  }
  const HookState saved = world.Save();
  ASSERT_FALSE(saved.tensors.empty());
  HookWorld later("int8(start_step=20)", parameters, 2);
  ASSERT_OK(later.Load(saved));
  EXPECT_EQ(later.Save().tensors.size(), saved.tensors.size());
  EXPECT_FALSE(later.hook(0).needs_frozen_layout());
}

TEST(Int8Test, RefusesStatesThatDoNotFit) {
  const auto parameters = Parameters(DType::kFloat32, {40, 3});
  HookWorld world("int8", parameters, 2);
  world.Step(Local(parameters, 2, 0));
  const HookState good = world.Save();
  ASSERT_EQ(good.tensors.size(), 6u);  // 4 errors, and rank 0's slices
  EXPECT_OK(world.Load(good));

  HookState state = good;
  state.tensors.erase(state.tensors.begin());
  EXPECT_THAT(LoadError(world, state), HasSubstr("of 1 of 2 ranks"));
  state = good;
  state.tensors[0].kind = "error/2";
  EXPECT_THAT(LoadError(world, state), HasSubstr("'error/2' of p0 is of no"));
  state.tensors[0].kind = "error/1";
  EXPECT_THAT(LoadError(world, state), HasSubstr("is there twice"));
  state = good;
  state.tensors[0].parameter = "p7";
  EXPECT_THAT(LoadError(world, state), HasSubstr("belongs to no parameter"));
  state = good;
  for (StateTensor& tensor : state.tensors) {
    if (tensor.kind == "slice/0/0") tensor.kind = "slice/0/30";
  }
  EXPECT_THAT(LoadError(world, state), HasSubstr("is no part of an error"));
  state = good;
  const float nan = std::nanf("");
  state.tensors[0].data.replace(0, 4, reinterpret_cast<const char*>(&nan), 4);
  EXPECT_THAT(LoadError(world, state), HasSubstr("not finite"));
  state = good;
  state.options.erase("world_size");
  EXPECT_THAT(LoadError(world, state), HasSubstr("how many ranks"));
  state = good;
  state.options.erase("parameters");
  EXPECT_THAT(LoadError(world, state), HasSubstr("merged"));

  HookWorld other("int8(error_feedback=false)",
                  Parameters(DType::kFloat32, {4}), 2);
  EXPECT_THAT(LoadError(other, good),
              AllOf(HasSubstr("error_feedback: saved true, here false"),
                    HasSubstr("p0: saved float32[40], here float32[4]"),
                    HasSubstr("p1 (float32[3]) only in the state")));
  HookWorld blocks("int8(block=32,start_step=1)", parameters, 2);
  EXPECT_OK(blocks.Load(good));
  // As it was, after all that.
  EXPECT_EQ(SerializeHookState(world.Save()), SerializeHookState(good));
}

TEST(Int8Test, BlocksAreOf32To4096) {
  for (const char* spec : {"int8(block=31)", "int8(block=4097)"}) {
    EXPECT_THAT(MakeHook(spec).status().message(),
                HasSubstr("block must be between 32 and 4096"));
  }
  EXPECT_OK(MakeHook("int8(block=4096)"));
}

}  // namespace
}  // namespace coxswain::int8_test
