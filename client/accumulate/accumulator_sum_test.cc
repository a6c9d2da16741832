// What the sums of a window are worth: that the average over the ranks comes
// out exactly, however the data is divided into micro-batches, windows, epochs
// and ranks.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status_matchers.h"
#include "client/accumulate/accumulator.h"
#include "schedule/plan.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

constexpr double kExact = 1e-12;

Accumulator Make(const schedule::Plan& plan, int rank = 0, int world_size = 1) {
  Accumulator::Options options;
  options.plan = plan;
  options.rank = rank;
  options.world_size = world_size;
  return Accumulator::Create(options).value();
}

MicroBatch Begin(Accumulator& accumulator, double weight, bool last = false) {
  Accumulator::Begin begin;
  begin.weight = weight;
  begin.end_of_data = last;
  const auto micro = accumulator.BeginMicroBatch("train", begin);
  EXPECT_OK(micro.status());
  return micro.value_or(MicroBatch());
}

TEST(AccumulatorWeightTest, LossesAreScaledByTheirShare) {
  schedule::Plan plan;
  plan.accumulation_steps = 3;
  plan.terms.weighting = schedule::Weighting::kTokens;
  Accumulator accumulator = Make(plan);
  EXPECT_DOUBLE_EQ(Begin(accumulator, 200).loss_scale, 1.0 / 3);
  EXPECT_DOUBLE_EQ(Begin(accumulator, 100).loss_scale, 1.0 / 6);
  EXPECT_DOUBLE_EQ(Begin(accumulator, 300).loss_scale, 1.0 / 2);
  EXPECT_EQ(accumulator.Sum().weight, 600);
  EXPECT_EQ(accumulator.Sum().divisor, 600);  // 3 of the first
  EXPECT_DOUBLE_EQ(Begin(accumulator, 7).loss_scale, 1.0 / 3);
}

TEST(AccumulatorWeightTest, CountsNotWithWeightingMean) {
  schedule::Plan plan;
  plan.accumulation_steps = 2;
  Accumulator accumulator = Make(plan);
  EXPECT_EQ(Begin(accumulator, 200).loss_scale, 0.5);
  EXPECT_EQ(Begin(accumulator, 100).loss_scale, 0.5);
  EXPECT_EQ(accumulator.Sum().weight, 2);
  EXPECT_EQ(accumulator.Sum().divisor, 2);
}

TEST(AccumulatorWeightTest, InvalidOnesAreRefusedAndCountNothing) {
  schedule::Plan plan;
  plan.terms.weighting = schedule::Weighting::kSamples;
  Accumulator accumulator = Make(plan);
  for (const double weight :
       {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    Accumulator::Begin begin;
    begin.weight = weight;
    EXPECT_THAT(accumulator.BeginMicroBatch("train", begin),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("finite and not negative")));
  }
  EXPECT_THAT(accumulator.BeginMicroBatch(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("weighs micro-batches by their samples: "
                                 "state the number")));
  EXPECT_EQ(Begin(accumulator, 1).step, 0);
}

TEST(AccumulatorWeightTest, OneOfWeight0IsEmptyAndHasItsPlace) {
  schedule::Plan plan;
  plan.accumulation_steps = 3;
  plan.terms.weighting = schedule::Weighting::kTokens;
  Accumulator accumulator = Make(plan);
  const MicroBatch first = Begin(accumulator, 0);
  EXPECT_TRUE(first.empty);
  EXPECT_EQ(first.loss_scale, 0);
  const MicroBatch second = Begin(accumulator, 100);
  EXPECT_FALSE(second.empty);
  EXPECT_EQ(second.micro, 1);
  EXPECT_DOUBLE_EQ(second.loss_scale, 1.0 / 3);
  EXPECT_DOUBLE_EQ(Begin(accumulator, 50).loss_scale, 1.0 / 6);
  EXPECT_EQ(accumulator.Sum().micro_batches, 3);
  EXPECT_EQ(accumulator.Sum().weight, 150);
  EXPECT_EQ(accumulator.Sum().divisor, 300);
  for (const bool sync : {false, false, true}) {
    const MicroBatch empty = Begin(accumulator, 0);
    EXPECT_TRUE(empty.empty);
    EXPECT_EQ(empty.sync, sync);
    EXPECT_EQ(empty.step, 1);
  }
  EXPECT_EQ(accumulator.Sum().micro_batches, 3);
  EXPECT_EQ(accumulator.Sum().weight, 0);
  EXPECT_DOUBLE_EQ(Begin(accumulator, 7).loss_scale, 1.0 / 3);
}

TEST(AccumulatorWeightTest, NeedNotBeStatedWithWeightingMean) {
  ASSERT_OK_AND_ASSIGN(Accumulator accumulator, Accumulator::Create(2));
  for (const double weight : {0.0, 200.0}) Begin(accumulator, weight);
  EXPECT_EQ(accumulator.Sum().weight, 2);
  EXPECT_FALSE(accumulator.BeginMicroBatch("train", {-1, false}).ok());
}

// How a rank learns of the end of its data.
enum class Ending { kTold, kFlagged, kFound };

struct Case {
  schedule::Plan plan;
  int world_size = 1;
  std::vector<Ending> endings;                // by rank
  std::vector<std::vector<int64_t>> lengths;  // by epoch and rank

  bool header() const { return plan.needs_header(world_size); }
  std::string Describe() const {
    std::string text =
        absl::StrCat(plan.accumulation_steps, " x ", world_size, " of ",
                     plan.global_micro_batches, " ",
                     absl::StrJoin(plan.terms.Changed(), " "), " endings");
    for (const Ending e : endings) absl::StrAppend(&text, " ", int(e));
    for (const auto& epoch : lengths) {
      absl::StrAppend(&text, " epoch ", absl::StrJoin(epoch, ","));
    }
    return text;
  }
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(20261121, seed) {}
  int Below(int bound) {
    return static_cast<int>(random_.Bits(next_++) %
                            static_cast<uint64_t>(bound));
  }
  double Value() { return random_.Normal(next_++); }

 private:
  const CounterRandom random_;
  uint64_t next_ = 0;
};

Case RandomCase(Draw& draw) {
  Case one;
  one.world_size = 1 + draw.Below(4);
  schedule::Terms& terms = one.plan.terms;
  one.plan.accumulation_steps = 1 + draw.Below(5);
  terms.tail = static_cast<schedule::TailPolicy>(draw.Below(3));
  terms.weighting = static_cast<schedule::Weighting>(draw.Below(3));
  terms.uneven_data = static_cast<schedule::UnevenData>(draw.Below(2));
  terms.on_resize = static_cast<schedule::OnResize>(draw.Below(2));
  terms.sync_each_batch = draw.Below(3) == 0;
  one.plan.global_micro_batches = 1 + draw.Below(12);
  const bool uneven = terms.uneven_data != schedule::UnevenData::kRefuse;
  for (int epoch = 0; epoch < 3; ++epoch) {
    one.lengths.emplace_back();
    const int length = draw.Below(14);
    for (int rank = 0; rank < one.world_size; ++rank) {
      one.lengths.back().push_back(uneven ? draw.Below(14) : length);
    }
  }
  // With sync_each_batch all ranks have to learn of it alike.
  const auto ending = static_cast<Ending>(draw.Below(3));
  for (int rank = 0; rank < one.world_size; ++rank) {
    one.endings.push_back(
        terms.sync_each_batch ? ending : static_cast<Ending>(draw.Below(3)));
  }
  return one;
}

// One exchange of a rank, and what it should have been worth.
struct Sent {
  WindowSum sum;
  double gradient = 0;  // as autograd sums it up
  double exact = 0;     // sum of weight * gradient
  double weight = 0;
  int micro_batches = 0;
  bool ends = false;  // an optimizer step follows
};

// A rank that trains through its epochs.
class Rank {
 public:
  Rank(const Case& one, int rank)
      : case_(one),
        rank_(static_cast<size_t>(rank)),
        accumulator_(Make(one.plan, rank, one.world_size)) {}

  void Train(Draw& draw) {
    for (const auto& epoch : case_.lengths) Epoch(epoch[rank_], draw);
  }
  const std::vector<Sent>& sent() const { return sent_; }
  // What was begun and neither exchanged nor forgotten.
  int open() const { return window_.micro_batches; }
  int forgotten() const { return forgotten_; }
  int begun() const { return begun_; }

 private:
  void Epoch(int64_t length, Draw& draw) {
    const Ending ending = case_.endings[rank_];
    if (ending == Ending::kTold) {
      ASSERT_OK(accumulator_.BeginEpoch(length));
    }
    for (int64_t i = 0; i < length; ++i) {
      Accumulator::Begin begin;
      begin.weight = 1 + draw.Below(900);
      begin.end_of_data = ending == Ending::kFlagged && i + 1 == length;
      const auto micro = accumulator_.BeginMicroBatch("train", begin);
      ASSERT_OK(micro.status());
      Backward(*micro, *begin.weight, draw.Value());
    }
    const WindowSum rest = accumulator_.EndOfData();
    if (rest.micro_batches == 0 && rest.exchanged == 0) return;
    if (case_.plan.terms.tail == schedule::TailPolicy::kDrop) {
      forgotten_ += window_.micro_batches;
      window_ = Sent();
      // Its averages are forgotten with it.
      while (!sent_.empty() && !sent_.back().ends) sent_.pop_back();
    } else if (rest.micro_batches > 0) {
      Exchange(rest, /*ends=*/true);
    } else {
      // All have been exchanged: only the optimizer step is left.
      sent_.back().ends = true;
      sent_.back().sum.rescale = rest.rescale;
    }
  }

  void Backward(const MicroBatch& micro, double weight, double gradient) {
    ++begun_;
    const bool mean = case_.plan.terms.weighting == schedule::Weighting::kMean;
    window_.gradient += micro.loss_scale * gradient;
    window_.exact += (mean ? 1 : weight) * gradient;
    window_.weight += mean ? 1 : weight;
    ++window_.micro_batches;
    const bool each = case_.plan.terms.sync_each_batch;
    // What is known to be dropped is not exchanged.
    if (case_.plan.terms.tail == schedule::TailPolicy::kDrop && each) {
      ASSERT_TRUE(micro.exchange || case_.endings[rank_] == Ending::kTold);
    } else {
      ASSERT_EQ(micro.exchange, micro.sync || each);
    }
    if (micro.exchange) Exchange(accumulator_.Sum(), micro.sync);
  }

  void Exchange(const WindowSum& sum, bool ends) {
    window_.sum = sum;
    window_.ends = ends;
    sent_.push_back(window_);
    window_ = Sent();
  }

  const Case& case_;
  const size_t rank_;
  Accumulator accumulator_;
  Sent window_;
  std::vector<Sent> sent_;
  int begun_ = 0;
  int forgotten_ = 0;
};

void CheckEachSum(const Case& one, const Rank& rank) {
  int exchanged = 0;
  for (const Sent& sent : rank.sent()) {
    exchanged += sent.micro_batches;
    EXPECT_EQ(sent.sum.micro_batches, sent.micro_batches);
    EXPECT_EQ(sent.sum.weight, sent.weight);
    if (one.plan.terms.sync_each_batch) continue;
    EXPECT_NEAR(sent.sum.divisor * sent.gradient, sent.exact,
                kExact * std::max(1.0, sent.weight));
  }
  if (one.plan.terms.sync_each_batch &&
      one.plan.terms.tail == schedule::TailPolicy::kDrop) {
    return;
  }
  EXPECT_EQ(exchanged + rank.open() + rank.forgotten(), rank.begun());
}

// As a reducer with a header exchange has it.
void CheckWeighted(const std::vector<Rank>& ranks) {
  size_t steps = 0;
  for (const Rank& rank : ranks) steps = std::max(steps, rank.sent().size());
  for (size_t step = 0; step < steps; ++step) {
    double sum = 0, weight = 0, exact = 0;
    for (const Rank& rank : ranks) {
      if (step >= rank.sent().size()) continue;
      const Sent& sent = rank.sent()[step];
      sum += sent.sum.divisor * sent.gradient;
      weight += sent.sum.weight;
      exact += sent.exact;
    }
    EXPECT_NEAR(sum / weight, exact / weight, kExact);
  }
}

// Without one, where all ranks have the same windows: by their mean alone.
void CheckMean(const Case& one, const std::vector<Rank>& ranks) {
  const bool each = one.plan.terms.sync_each_batch;
  double summed = 0, exact = 0;
  int count = 0;
  for (size_t step = 0; step < ranks[0].sent().size(); ++step) {
    double average = 0;
    for (const Rank& rank : ranks) {
      ASSERT_EQ(rank.sent().size(), ranks[0].sent().size());
      const Sent& sent = rank.sent()[step];
      ASSERT_EQ(sent.ends, ranks[0].sent()[step].ends);
      EXPECT_EQ(sent.sum.end_of_data, ranks[0].sent()[step].sum.end_of_data);
      average += sent.gradient * (each ? 1 : sent.sum.rescale) /
                 static_cast<double>(ranks.size());
      exact += sent.exact;
      count += sent.micro_batches;
    }
    summed += average;
    if (!ranks[0].sent()[step].ends) continue;
    if (each) summed *= ranks[0].sent()[step].sum.rescale;
    EXPECT_NEAR(summed, exact / count, kExact);
    summed = exact = 0;
    count = 0;
  }
}

TEST(AccumulatorSumTest, AveragesAreExactWhateverThePlanAndTheLengths) {
  int weighted = 0, plain = 0, each = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Draw draw(seed);
    const Case one = RandomCase(draw);
    if (!one.plan.terms.Validate().ok()) continue;
    SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", one.Describe()));
    std::vector<Rank> ranks;
    ranks.reserve(static_cast<size_t>(one.world_size));
    for (int rank = 0; rank < one.world_size; ++rank) {
      ranks.emplace_back(one, rank);
      ranks.back().Train(draw);
      CheckEachSum(one, ranks.back());
    }
    if (one.header()) {
      ++weighted;
      CheckWeighted(ranks);
    } else {
      ++(one.plan.terms.sync_each_batch ? each : plain);
      CheckMean(one, ranks);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(weighted, 500);
  EXPECT_GT(plain, 200);
  EXPECT_GT(each, 50);
}

}  // namespace
}  // namespace coxswain
