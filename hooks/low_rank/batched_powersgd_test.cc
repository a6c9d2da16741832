#include "hooks/low_rank/batched_powersgd.h"

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hooks/low_rank/worlds_for_test.h"
#include "tests/conformance/hook_world.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

using Vector = std::vector<double>;

// Rank 1 of one bucket, by the textbook: vectors p and q.
class RankOne {
 public:
  RankOne(size_t count, size_t columns, Vector q, size_t ranks)
      : count_(count),
        columns_(columns),
        rows_((count + columns - 1) / columns),
        q_(std::move(q)),
        errors_(ranks, Vector(count, 0.0)) {}

  Vector Step(const std::vector<Vector>& buckets) {
    const double ranks = static_cast<double>(buckets.size());
    Normalise(q_);
    Vector p(rows_, 0.0), q(columns_, 0.0);
    for (size_t w = 0; w < buckets.size(); ++w) {
      for (size_t i = 0; i < count_; ++i) {
        errors_[w][i] += buckets[w][i];
        p[i / columns_] += errors_[w][i] * q_[i % columns_] / ranks;
      }
    }
    Normalise(p);
    for (Vector& x : errors_) {
      Vector own(columns_, 0.0);
      for (size_t i = 0; i < count_; ++i) {
        own[i % columns_] += x[i] * p[i / columns_];
      }
      for (size_t i = 0; i < count_; ++i) {
        x[i] -= p[i / columns_] * own[i % columns_];
      }
      for (size_t j = 0; j < columns_; ++j) q[j] += own[j] / ranks;
    }
    q_ = q;
    Vector result(count_);
    for (size_t i = 0; i < count_; ++i) {
      result[i] = p[i / columns_] * q[i % columns_];
    }
    return result;
  }

 private:
  static void Normalise(Vector& v) {
    double norm = 0;
    for (const double value : v) norm += value * value;
    for (double& value : v) value /= std::sqrt(norm);
  }

  const size_t count_;
  const size_t columns_;
  const size_t rows_;
  Vector q_;
  std::vector<Vector> errors_;  // by rank
};

Vector Joined(const Gradients& gradients) {
  Vector all;
  for (const Vector& one : gradients)
    all.insert(all.end(), one.begin(), one.end());
  return all;
}

// 20 elements fill 4 x 5; 23 leave two of 5 x 5 empty, 26 all but two of a
// row.
TEST(BatchedPowerSgdTest, AgreesWithThePlainFormulas) {
  for (const auto& [last, columns] :
       {std::pair<int64_t, size_t>{4, 5}, {7, 5}, {10, 6}, {0, 4}}) {
    const std::vector<ParameterSpec> parameters = {
        Parameter("w", {3, 5}), Parameter("s", {}), Parameter("b", {last})};
    HookWorld world = Started("batched_powersgd(start_step=2,seed=4)",
                              parameters, 3, {{0, 1, 2}});
    const CounterRandom random(4, StableHash("w\ns\nb\n") ^ Mix64(2));
    Vector q;
    for (size_t j = 0; j < columns; ++j) q.push_back(random.Normal(j));
    RankOne expected(static_cast<size_t>(16 + last), columns, q, 3);
    for (int64_t step = 0; step < 12; ++step) {
      const auto local = Local(parameters, 3, step);
      std::vector<Vector> buckets;
      for (const Gradients& one : local) buckets.push_back(Joined(one));
      EXPECT_LE(RelativeDifference({Joined(world.Step(local))},
                                   {expected.Step(buckets)}),
                1e-10)
          << last << ", step " << step;
    }
  }
}

Gradients ErrorOf(HookWorld& world,
                  const std::vector<ParameterSpec>& parameters) {
  return MeanError(world.Save(), parameters, world.size());
}

TEST(BatchedPowerSgdTest, ABucketTakesTwoAllReduces) {
  const auto parameters = ThreeBucketsOfParameters();
  HookWorld world =
      Started("batched_powersgd(start_step=2)", parameters, 2, ThreeBuckets());
  const Traffic traffic = TrafficOfStep(world, Local(parameters, 2, 2));
  EXPECT_EQ(traffic.collectives, 3 * 2);
}

TEST(BatchedPowerSgdTest, ErrorMovesWithItsParameterAndQStaysWithItsBucket) {
  const std::vector<ParameterSpec> parameters = {
      Parameter("a", {5, 5}), Parameter("b", {9}), Parameter("c", {4, 8})};
  const std::string spec = "batched_powersgd(start_step=2)";
  HookWorld world = Started(spec, parameters, 2, {{0, 1}, {2}});
  for (int64_t step = 0; step < 3; ++step) {
    world.Step(Local(parameters, 2, step));
  }
  const HookState state = world.Save();
  // The same buckets go on as before, whatever their order.
  HookWorld same = Started(spec, parameters, 2, {{2}, {0, 1}});
  ASSERT_OK(same.Load(state));
  // A state that has been taken over can be passed on at once.
  EXPECT_LE(
      RelativeDifference(ErrorOf(same, parameters), ErrorOf(world, parameters)),
      1e-15);
  EXPECT_EQ(same.Save().tensors.size(), state.tensors.size());
  // Others begin with the error, which a step of zeros shows: what it sends is
  // missing in the error afterwards.
  HookWorld other = Started(spec, parameters, 2, {{0, 2}, {1}});
  ASSERT_OK(other.Load(state));
  world.Rebucket({{1}, {2, 0}});
  const auto local = Local(parameters, 2, 9);
  for (HookWorld* rebucketed : {&other, &world}) {
    Gradients before = ErrorOf(*rebucketed, parameters);
    AddTo(before, MeanOver(local));
    Gradients after = rebucketed->Step(local);
    AddTo(after, ErrorOf(*rebucketed, parameters));
    EXPECT_LE(RelativeDifference(after, before), 1e-13);
  }
  // Q of the former buckets is gone.
  EXPECT_EQ(other.Save().tensors.size(), state.tensors.size());
  const auto next = Local(parameters, 2, 10);
  HookWorld straight = Started(spec, parameters, 2, {{0, 1}, {2}});
  ASSERT_OK(straight.Load(state));
  EXPECT_LE(RelativeDifference(same.Step(next), straight.Step(next)), 1e-12);
}

TEST(BatchedPowerSgdTest, ErrorSurvivesWhatItsBucketsLose) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {5, 5}),
                                                 Parameter("b", {9})};
  HookWorld world =
      Started("batched_powersgd(start_step=2)", parameters, 2, {{0, 1}});
  world.Step(Local(parameters, 2, 0));
  const Gradients before = ErrorOf(world, parameters);
  std::vector<ParameterSpec> renamed = parameters;
  renamed[1].name = "z";
  ASSERT_OK(world.hook(0).Configure(renamed, 2));
  ASSERT_OK(world.hook(1).Configure(renamed, 2));
  const Gradients after = ErrorOf(world, renamed);
  EXPECT_LE(RelativeDifference({after[0]}, {before[0]}), 1e-15);
  EXPECT_EQ(RelativeDifference({after[1]}, {Vector(9, 0.0)}), 0);
}

TEST(BatchedPowerSgdTest, DamagedStateIsRefused) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {5, 5}),
                                                 Parameter("b", {9})};
  HookWorld world =
      Started("batched_powersgd(start_step=2)", parameters, 2, {{0, 1}});
  world.Step(Local(parameters, 2, 0));
  const HookState good = world.Save();
  std::vector<HookState> bad(6, good);
  bad[0].tensors[0].kind = "r";
  bad[1].tensors[0].data.pop_back();
  bad[2].tensors[0].data.assign(good.tensors[0].data.size(), '\xff');
  bad[3].tensors[0].parameter = "x";
  ASSERT_EQ(good.tensors[0].shape.size(), 2u);
  for (int64_t& extent : bad[4].tensors[0].shape) extent = -extent;
  bad[5].tensors[0].shape = {int64_t{1} << 62, 4};
  bad[5].tensors[0].data.clear();
  for (const HookState& state : bad) {
    EXPECT_THAT(
        world.Load(state),
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("fit")));
  }
  EXPECT_OK(world.Load(good));
}

}  // namespace
}  // namespace coxswain
