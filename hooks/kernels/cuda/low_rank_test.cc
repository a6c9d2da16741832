#include "hooks/kernels/cuda/low_rank.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/float16.h"
#include "gtest/gtest.h"
#include "hooks/kernels/cuda/orthogonalise.h"
#include "hooks/kernels/every_target.h"
#include "hooks/kernels/low_rank.h"

namespace coxswain::low_rank_test {
namespace {

class AtOnce : public HostStream {
 public:
  void Enqueue(std::function<void()> work) override { work(); }
};

template <typename T>
constexpr T kPoison = static_cast<T>(12345);
template <typename T>
constexpr ElementType kOwn = sizeof(T) == 8 ? ElementType::kFloat64
                                            : ElementType::kFloat32;

struct Options {
  ElementType type = ElementType::kFloat32;
  bool has_error = true;
  bool has_product = true;  // of the error
  bool keeps_error = true;
  int64_t offset = 0;  // elements that arrays stand off 64 bytes
  uint64_t order = 0;  // of blocks and threads
  double divisor = 1;
};

// All memory of one gradient.
template <typename T>
struct Gradient {
  Gradient(const LowRankShape& of, const Options& options, uint64_t seed)
      : shape(of),
        wide(of.n * of.m, options.offset, kPoison<T>),
        narrow(of.n * of.m, options.offset, 0x5555),
        previous(of.n * of.m, options.offset, kPoison<T>),
        x(of.n * of.m, options.offset, kPoison<T>),
        previous_p(of.n * of.r, options.offset, kPoison<T>),
        previous_q(of.m * of.r, options.offset, kPoison<T>),
        first_q(of.m * of.r, options.offset, kPoison<T>),
        p(of.n * of.r, options.offset, kPoison<T>),
        q(of.m * of.r, options.offset, kPoison<T>),
        own_q(of.m * of.r, options.offset, kPoison<T>) {
    std::vector<T> values = Normals<T>(seed, of.n * of.m);
    for (size_t i = 0; i < values.size(); ++i) {
      if (options.type == kOwn<T>) break;
      const auto value = static_cast<float>(values[i]);
      const bool half = options.type == ElementType::kFloat16;
      const uint16_t bits =
          half ? FloatToFloat16(value) : FloatToBFloat16(value);
      narrow.data()[i] = bits;
      values[i] = half ? Float16ToFloat(bits) : BFloat16ToFloat(bits);
    }
    wide.Fill(values);
    previous.Fill(Normals<T>(seed + 1, of.n * of.m));
    previous_p.Fill(Normals<T>(seed + 2, of.n * of.r));
    previous_q.Fill(Normals<T>(seed + 3, of.m * of.r));
    first_q.Fill(Normals<T>(seed + 4, of.m * of.r));
  }

  DeviceLowRankMatrix<T> Entry(const Options& options) {
    DeviceLowRankMatrix<T> entry;
    entry.n = shape.n;
    entry.m = shape.m;
    entry.r = shape.r;
    entry.gradient = options.type == kOwn<T> ? static_cast<void*>(wide.data())
                                             : narrow.data();
    if (options.has_error) {
      entry.previous = previous.data();
      if (options.has_product) {
        entry.previous_p = previous_p.data();
        entry.previous_q = previous_q.data();
      }
    }
    if (options.keeps_error) {
      entry.x = x.data();
      entry.own_q = own_q.data();
    }
    entry.first_q = first_q.data();
    entry.p = p.data();
    entry.q = q.data();
    return entry;
  }

  bool IsIntact() {
    for (auto* array : {&wide, &previous, &x, &previous_p, &previous_q,
                        &first_q, &p, &q, &own_q}) {
      if (!array->IsIntact()) return false;
    }
    return narrow.IsIntact();
  }

  LowRankShape shape;
  Guarded<T> wide;
  Guarded<uint16_t> narrow;
  Guarded<T> previous, x, previous_p, previous_q, first_q, p, q, own_q;
};

template <typename T>
class World {
 public:
  World(const std::vector<LowRankShape>& shapes,
        const std::vector<int64_t>& raws, const Options& options)
      : options_(options) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      gradients_.push_back(std::make_unique<Gradient<T>>(
          shapes[i], options, 10 * static_cast<uint64_t>(shapes[i].n + 1)));
      table_.push_back(gradients_.back()->Entry(options));
    }
    for (const int64_t count : raws) AddRaw(count);
    plan_ = PlanLowRank(shapes, raws, sizeof(T));
    partials_.assign(static_cast<size_t>(plan_.partials), kPoison<T>);
    target_.host = &stream_;
    target_.launches = static_cast<int64_t>(options.order);
  }

  void Take() {
    TakeOnDevice(&target_, On(), static_cast<T>(options_.divisor));
  }
  void Project() {
    ProjectOnDevice(&target_, On(), static_cast<T>(options_.divisor));
  }
  void Finish(PoisonedGradients poisoned = PoisonedGradients::kLeave) {
    FinishOnDevice(&target_, On(), T{2}, poisoned);
  }

  DeviceLowRank<T> On() {
    DeviceLowRank<T> on;
    on.plan = &plan_;
    on.tiles = plan_.tiles.data();
    on.matrices = table_.data();
    on.raws = raw_table_.data();
    on.partials = partials_.data();
    on.poisoned = &poisoned_;
    on.gradient_type = options_.type;
    return on;
  }

  Gradient<T>& gradient(size_t i) { return *gradients_[i]; }
  size_t size() const { return gradients_.size(); }
  const LowRankPlan& plan() const { return plan_; }
  LaunchTarget& target() { return target_; }
  uint32_t& poisoned() { return poisoned_; }

  struct Raw {
    std::vector<T> gradient, error, x, sent;
  };
  std::vector<Raw> raws;

 private:
  void AddRaw(int64_t count) {
    Raw raw;
    raw.gradient = Normals<T>(91, count);
    raw.error = Normals<T>(92, count);
    raw.x.resize(static_cast<size_t>(count));
    raw.sent.resize(static_cast<size_t>(count));
    raws.push_back(std::move(raw));
    Raw& at = raws.back();
    raw_table_.push_back({count, at.gradient.data(),
                          options_.has_error ? at.error.data() : nullptr,
                          options_.keeps_error ? at.x.data() : nullptr,
                          at.sent.data()});
  }

  const Options options_;
  std::vector<std::unique_ptr<Gradient<T>>> gradients_;
  std::vector<DeviceLowRankMatrix<T>> table_;
  std::vector<DeviceRawTensor<T>> raw_table_;
  LowRankPlan plan_;
  std::vector<T> partials_;
  uint32_t poisoned_ = 77;
  AtOnce stream_;
  LaunchTarget target_;
};

const std::vector<LowRankShape>& Shapes() {
  static const auto* const shapes = new std::vector<LowRankShape>{
      {1, 1, 1},      {1, 9, 1},    {9, 1, 1},    {4, 16, 4},   {5, 17, 3},
      {23, 152, 4},   {7, 63, 2},   {64, 27, 4},  {130, 9, 2},  {33, 1031, 4},
      {3, 5000, 3},   {2, 9000, 2}, {700, 4, 3},  {3000, 2, 2}, {259, 516, 4},
      {1100, 150, 1}, {40, 640, 4}, {16, 2048, 4}};
  return *shapes;
}
// Returns the same, with ranks up to `most`.
std::vector<LowRankShape> ShapesOfRank(int64_t most) {
  std::vector<LowRankShape> shapes = Shapes();
  for (LowRankShape& shape : shapes) {
    shape.r = std::min({most, shape.n, shape.m});
  }
  return shapes;
}

template <typename T>
double Distance(const std::vector<T>& a, const std::vector<T>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double gap = double{a[i]} - double{b[i]};
    difference += gap * gap;
    size += double{b[i]} * double{b[i]};
  }
  return size == 0 ? difference : std::sqrt(difference / size);
}

template <typename T>
class DeviceLowRankTest : public testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 1e-5 : 1e-13;

  static LowRankPass<T> Pass(Gradient<T>& at, const Options& options) {
    LowRankPass<T> pass;
    pass.gradient = at.wide.data();  // what narrow ones are worth
    if (options.has_error) {
      pass.previous = at.previous.data();
      if (options.has_product) {
        pass.product = {at.previous_p.data(), at.previous_q.data(), at.shape.r};
      }
    }
    pass.n = at.shape.n;
    pass.m = at.shape.m;
    pass.r = at.shape.r;
    return pass;
  }

  static std::vector<T> Of(int64_t count) {
    return std::vector<T>(static_cast<size_t>(count));
  }

  // All three calls against the CPU's kernels.
  static void ExpectAsOnTheCpu(const std::vector<LowRankShape>& shapes,
                               const Options& options) {
    World<T> world(shapes, {}, options);
    world.Take();
    for (size_t i = 0; i < world.size(); ++i) {
      SCOPED_TRACE(i);
      Gradient<T>& at = world.gradient(i);
      const auto& [n, m, r] = at.shape;
      LowRankPass<T> pass = Pass(at, options);
      auto x = Of(n * m), p = Of(n * r);
      pass.out = x.data();
      pass.factor = at.first_q.data();
      pass.result = p.data();
      PassOverRows<T>({pass});
      for (T& value : p) value /= static_cast<T>(options.divisor);
      if (options.keeps_error) {
        ASSERT_EQ(at.x.Values(), x);
      } else {
        ASSERT_EQ(at.x.data()[0], kPoison<T>);
      }
      ASSERT_LE(Distance(at.p.Values(), p), kTolerance);
    }
    world.Project();
    for (size_t i = 0; i < world.size(); ++i) {
      SCOPED_TRACE(i);
      Gradient<T>& at = world.gradient(i);
      const auto& [n, m, r] = at.shape;
      LowRankPass<T> pass = Pass(at, options);
      auto q = Of(m * r);
      pass.factor = at.p.data();
      pass.result = q.data();
      PassOverColumns<T>({pass});
      if (options.keeps_error) {
        ASSERT_LE(Distance(at.own_q.Values(), q), kTolerance);
      }
      for (T& value : q) value /= static_cast<T>(options.divisor);
      ASSERT_LE(Distance(at.q.Values(), q), kTolerance);
    }
    world.Finish();
    for (size_t i = 0; i < world.size(); ++i) {
      SCOPED_TRACE(i);
      Gradient<T>& at = world.gradient(i);
      const auto& [n, m, r] = at.shape;
      LowRankPass<T> pass;
      auto made = Of(n * m);
      pass.product = {at.p.data(), at.q.data(), r};
      pass.out = made.data();
      pass.n = n;
      pass.m = m;
      PassOverRows<T>({pass});
      for (size_t j = 0; j < made.size(); ++j) {
        if (options.type == kOwn<T>) {
          ASSERT_EQ(at.wide.data()[j], made[j]);
        } else {
          const auto value = static_cast<float>(made[j]);
          ASSERT_EQ(at.narrow.data()[j], options.type == ElementType::kFloat16
                                             ? FloatToFloat16(value)
                                             : FloatToBFloat16(value));
        }
      }
      ASSERT_TRUE(at.IsIntact());
    }
    EXPECT_EQ(world.poisoned(), 0u);
    EXPECT_EQ(world.target().error, 0);
  }

  static Options Own() {
    Options options;
    options.type = kOwn<T>;
    return options;
  }
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(DeviceLowRankTest, Types);

TYPED_TEST(DeviceLowRankTest, ProductsAreThoseOfTheCpu) {
  for (const int64_t rank : {1, 2, 4, 7, 13}) {
    SCOPED_TRACE(rank);
    this->ExpectAsOnTheCpu(ShapesOfRank(rank), this->Own());
  }
}

TYPED_TEST(DeviceLowRankTest, WithWhatAPassCanDoWithout) {
  for (const int64_t rank : {4, 9}) {
    Options options = this->Own();
    options.divisor = 3;
    options.has_product = false;
    this->ExpectAsOnTheCpu(ShapesOfRank(rank), options);
    options.has_error = false;
    this->ExpectAsOnTheCpu(ShapesOfRank(rank), options);
    options.keeps_error = false;
    this->ExpectAsOnTheCpu(ShapesOfRank(rank), options);
  }
}

TYPED_TEST(DeviceLowRankTest, AnyAlignment) {
  for (const int64_t offset : {1, 2, 3}) {
    Options options = this->Own();
    options.offset = offset;
    this->ExpectAsOnTheCpu(Shapes(), options);
  }
}

using NarrowLowRankTest = DeviceLowRankTest<float>;
TEST_F(NarrowLowRankTest, SixteenBitGradients) {
  for (const auto type : {ElementType::kFloat16, ElementType::kBFloat16}) {
    for (const int64_t offset : {0, 2}) {
      for (const bool keeps : {true, false}) {
        Options options;
        options.type = type;
        options.offset = offset;
        options.keeps_error = options.has_error = keeps;
        ExpectAsOnTheCpu(ShapesOfRank(4), options);
        ExpectAsOnTheCpu(ShapesOfRank(9), options);
      }
    }
  }
}

// Neither the order of blocks and threads, nor alignment, nor the rest of the
// list changes a bit.
TYPED_TEST(DeviceLowRankTest, BitsAreAFunctionOfTheMatrixAlone) {
  using T = TypeParam;
  for (const int64_t rank : {4, 9}) {
    const auto shapes = ShapesOfRank(rank);
    const auto run = [&](World<T>& world) {
      world.Take();
      world.Project();
      world.Finish();
    };
    World<T> first(shapes, {}, this->Own());
    run(first);
    for (uint64_t order = 1; order < 4; ++order) {
      Options options = this->Own();
      options.order = order;
      options.offset = static_cast<int64_t>(order);
      World<T> other(shapes, {1000}, options);
      run(other);
      for (size_t i = 0; i < shapes.size(); ++i) {
        ASSERT_TRUE(SameBits(other.gradient(i).x.Values(),
                             first.gradient(i).x.Values()));
        ASSERT_TRUE(SameBits(other.gradient(i).q.Values(),
                             first.gradient(i).q.Values()));
        ASSERT_TRUE(SameBits(other.gradient(i).wide.Values(),
                             first.gradient(i).wide.Values()));
      }
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      // A program of another width, perhaps: zeros may differ in sign.
      World<T> alone({shapes[i]}, {}, this->Own());
      run(alone);
      ASSERT_EQ(alone.gradient(0).p.Values(), first.gradient(i).p.Values());
      ASSERT_EQ(alone.gradient(0).q.Values(), first.gradient(i).q.Values());
    }
  }
}

TYPED_TEST(DeviceLowRankTest, XMayTakeThePlaceOfThePreviousOne) {
  using T = TypeParam;
  for (const int64_t rank : {4, 9}) {
    const LowRankShape shape{300, 700, rank};
    World<T> apart({shape}, {}, this->Own()), within({shape}, {}, this->Own());
    auto table = within.gradient(0).Entry(this->Own());
    table.x = within.gradient(0).previous.data();
    auto on = within.On();
    on.matrices = &table;
    apart.Take();
    TakeOnDevice(&within.target(), on, T{1});
    EXPECT_TRUE(SameBits(within.gradient(0).previous.Values(),
                         apart.gradient(0).x.Values()));
    EXPECT_TRUE(
        SameBits(within.gradient(0).p.Values(), apart.gradient(0).p.Values()));
  }
}

TYPED_TEST(DeviceLowRankTest, RawTensors) {
  using T = TypeParam;
  Options options = this->Own();
  options.divisor = 4;
  for (const bool keeps : {true, false}) {
    options.has_error = options.keeps_error = keeps;
    World<T> world({{20, 30, 2}}, {1, 0, 5000, 4096}, options);
    const auto before = world.raws;
    world.Take();
    for (size_t k = 0; k < world.raws.size(); ++k) {
      for (size_t i = 0; i < before[k].gradient.size(); ++i) {
        const T x = before[k].gradient[i] + (keeps ? before[k].error[i] : T{0});
        ASSERT_EQ(world.raws[k].sent[i], x / 4);
        ASSERT_EQ(world.raws[k].x[i], keeps ? x : T{0});
        world.raws[k].sent[i] = static_cast<T>(i);  // received
      }
    }
    const auto taken = world.raws;
    world.Project();
    world.Finish();
    for (size_t k = 0; k < world.raws.size(); ++k) {
      for (size_t i = 0; i < before[k].gradient.size(); ++i) {
        const T mean = static_cast<T>(i) / 2;
        ASSERT_EQ(world.raws[k].gradient[i], mean);
        ASSERT_EQ(world.raws[k].x[i], keeps ? taken[k].x[i] - mean : T{0});
      }
    }
  }
}

TYPED_TEST(DeviceLowRankTest, WhatIsNotFinitePoisonsTheStep) {
  using T = TypeParam;
  constexpr T kBad[] = {std::numeric_limits<T>::infinity(),
                        -std::numeric_limits<T>::infinity(),
                        std::numeric_limits<T>::quiet_NaN()};
  for (const T bad : kBad) {
    for (const size_t at :
         {size_t{0}, size_t{2047}, size_t{2048}, size_t{4999}}) {
      World<T> world({{20, 30, 2}}, {10}, this->Own());
      world.Take();
      world.Project();
      ASSERT_EQ(world.poisoned(), 0u);
      std::vector<T> received(5000, std::numeric_limits<T>::max());
      CheckOnDevice(&world.target(), received.data(), 5000, T{2},
                    &world.poisoned());
      ASSERT_EQ(world.poisoned(), 0u);
      ASSERT_EQ(received[4999], std::numeric_limits<T>::max() / 2);
      received[at] = bad;
      CheckOnDevice(&world.target(), received.data(), 5000, T{1},
                    &world.poisoned());
      ASSERT_EQ(world.poisoned(), 1u);
      const auto gradient = world.gradient(0).wide.Values();
      const auto raw = world.raws[0];
      world.Finish(PoisonedGradients::kLeave);
      ASSERT_TRUE(SameBits(world.gradient(0).wide.Values(), gradient));
      ASSERT_TRUE(SameBits(world.raws[0].gradient, raw.gradient));
      world.Finish(PoisonedGradients::kFillWithNan);
      for (const T value : world.gradient(0).wide.Values()) {
        ASSERT_TRUE(std::isnan(value));
      }
      for (const T value : world.raws[0].gradient) {
        ASSERT_TRUE(std::isnan(value));
      }
      ASSERT_TRUE(SameBits(world.raws[0].x, raw.x));
      world.Take();
      ASSERT_EQ(world.poisoned(), 0u);  // the next step begins anew
    }
  }
}

TYPED_TEST(DeviceLowRankTest, FactorsNearTheLargestNumberBecomeNan) {
  using T = TypeParam;
  const T limit = std::numeric_limits<T>::max() / 256;
  for (const bool keeps : {true, false}) {
    Options options = this->Own();
    options.has_error = false;
    options.keeps_error = keeps;
    options.divisor = 4;
    World<T> world({{3, 8, 1}}, {}, options);
    Gradient<T>& at = world.gradient(0);
    at.wide.Fill(std::vector<T>(24, T{0}));
    at.first_q.Fill(std::vector<T>(8, T{1}));
    at.wide.data()[1] = limit;
    at.wide.data()[9] = std::nextafter(limit, std::numeric_limits<T>::max());
    world.Take();
    EXPECT_EQ(at.p.data()[0], limit / 4);
    EXPECT_EQ(std::isnan(at.p.data()[1]), keeps);
    EXPECT_EQ(at.p.data()[2], T{0});
    at.p.Fill({1, 1, 0});
    world.Project();
    EXPECT_EQ(at.q.data()[0], T{0});
    EXPECT_EQ(std::isnan(at.q.data()[1]), keeps);
    EXPECT_EQ(std::isnan(at.own_q.data()[1]), keeps);
  }
}

TYPED_TEST(DeviceLowRankTest, AStepIsElevenLaunches) {
  using T = TypeParam;
  for (const size_t count : {1, 54, 148, 1000}) {
    std::vector<LowRankShape> shapes;
    std::vector<TallShape> p_shapes, q_shapes;
    for (size_t i = 0; i < count; ++i) {
      shapes.push_back({static_cast<int64_t>(4 + i % 5), 8, 4});
      p_shapes.push_back({shapes.back().n, 4});
      q_shapes.push_back({8, 4});
    }
    World<T> world(shapes, {3, 5}, this->Own());
    std::vector<DeviceTallMatrix<T>> p_table, q_table;
    for (size_t i = 0; i < count; ++i) {
      Gradient<T>& at = world.gradient(i);
      p_table.push_back({at.p.data(), at.p.data(), at.shape.n, 4});
      q_table.push_back({at.first_q.data(), at.first_q.data(), 8, 4});
    }
    const auto orthogonalise = [&](const std::vector<TallShape>& tall,
                                   const std::vector<DeviceTallMatrix<T>>& at) {
      const TallPlan plan = PlanOrthogonalise(tall, sizeof(T));
      std::vector<double> partials(static_cast<size_t>(plan.partials));
      DeviceTall<T> on;
      on.plan = &plan;
      on.strips = plan.strips.data();
      on.matrices = at.data();
      on.partials = partials.data();
      on.poisoned = nullptr;
      OrthogonaliseOnDevice(&world.target(), on);
    };
    orthogonalise(q_shapes, q_table);
    world.Take();
    CheckOnDevice(&world.target(), world.gradient(0).p.data(), 4, T{1},
                  &world.poisoned());
    orthogonalise(p_shapes, p_table);
    world.Project();
    CheckOnDevice(&world.target(), world.gradient(0).q.data(), 4, T{1},
                  &world.poisoned());
    world.Finish();
    EXPECT_LE(world.target().launches, 11);
    EXPECT_EQ(world.target().error, 0);
  }
}

TYPED_TEST(DeviceLowRankTest, EmptyMatricesAndNone) {
  using T = TypeParam;
  World<T> world({{0, 5, 1}, {5, 0, 2}, {6, 7, 2}}, {}, this->Own());
  world.Take();
  world.Project();
  world.Finish();
  EXPECT_EQ(world.gradient(0).q.Values(), std::vector<T>(5, T{0}));
  EXPECT_EQ(world.gradient(1).p.Values(), std::vector<T>(10, T{0}));
  World<T> none({}, {}, this->Own());
  none.Take();
  none.Project();
  none.Finish();
  EXPECT_EQ(none.poisoned(), 0u);
  EXPECT_EQ(none.target().error, 0);
}

TEST(LowRankPlanTest, CoversEachElementOnceBeyondTwoToTheThirtyTwo) {
  const std::vector<LowRankShape> shapes = {
      {70000, 70001, 4}, {3, int64_t{1} << 31, 3}, {int64_t{1} << 30, 3, 3}};
  const LowRankPlan plan = PlanLowRank(shapes, {(int64_t{1} << 33) + 1}, 4);
  EXPECT_EQ(plan.rank, 4);
  const auto covered = [&](const LowRankTiles& section, bool take) {
    std::vector<double> areas(shapes.size());
    for (int64_t t = 0; t < section.count; ++t) {
      const LowRankTile& tile =
          plan.tiles[static_cast<size_t>(section.begin + t)];
      if (tile.kind < 0) continue;
      const auto item = static_cast<size_t>(tile.item);
      const int64_t lanes = int64_t{1} << tile.kind;
      const int64_t rows = 256 / lanes * (take ? 4 : 16);
      const int64_t columns = lanes * (take ? 16 : 4);
      const LowRankShape& shape = shapes[item];
      EXPECT_GE(tile.row, 0);
      EXPECT_GE(tile.partial, 0);
      EXPECT_LT(tile.row, shape.n);
      EXPECT_LT(tile.column, shape.m);
      areas[item] +=
          static_cast<double>(std::min(rows, shape.n - tile.row)) *
          static_cast<double>(std::min(columns, shape.m - tile.column));
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_EQ(areas[i], static_cast<double>(shapes[i].n) *
                              static_cast<double>(shapes[i].m));
    }
  };
  covered(plan.take, true);
  covered(plan.project, false);
  covered(plan.finish, false);
  const LowRankTile& last = plan.tiles.back();
  EXPECT_EQ(last.row, int64_t{1} << 33);
  // The second one's Q is as large as itself, and so are its sums.
  EXPECT_GT(plan.partials, int64_t{3} << 31);
  EXPECT_LT(plan.partials, int64_t{4} << 31);
}

TEST(DeviceLowRankErrorTest, RefusesTypesThatDoNotFit) {
  World<double> world({{3, 3, 1}}, {}, [] {
    Options options;
    options.type = ElementType::kFloat16;
    return options;
  }());
  world.Take();
  EXPECT_NE(world.target().error, 0);
}

}  // namespace
}  // namespace coxswain::low_rank_test
