#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "tests/property/case.h"

namespace coxswain::property {
namespace {

// Draws from one stream, one after the other.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed, 1) {}

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_.Uniform(next_++) *
                                      static_cast<double>(high - low + 1));
  }
  bool Chance(double probability) {
    return random_.Uniform(next_++) < probability;
  }
  template <typename T>
  T OneOf(const std::vector<T>& all) {
    return all[static_cast<size_t>(
        Between(0, static_cast<int64_t>(all.size()) - 1))];
  }

 private:
  const CounterRandom random_;
  uint64_t next_ = 0;
};

// Compressed after two plain steps, the fewest that hooks with a memory take.
std::string LowRankSpec(Draw& draw) {
  std::string options = absl::StrCat(
      "rank=", draw.Between(1, 3),
      ",min_compression_rate=", draw.OneOf<int>({0, 1, 2}), ",start_step=");
  if (draw.Chance(0.3)) return absl::StrCat("acp_sgd(", options, "2)");
  if (draw.Chance(0.15)) {
    return absl::StrCat("powersgd(", options,
                        "0,warm_start=false,error_feedback=false)");
  }
  return absl::StrCat("powersgd(", options, "2",
                      draw.OneOf<std::string>(
                          {"", "", ",warm_start=false", ",error_feedback=false",
                           ",mode=pytorch", ",orthogonalize=gram_schmidt",
                           ",orthogonalize=cholesky_qr2"}),
                      ")");
}

std::string HookSpec(Draw& draw) {
  if (draw.Chance(0.35)) return "allreduce";
  if (draw.Chance(0.3)) return LowRankSpec(draw);
  const int64_t start = draw.Between(0, 2);
  return draw.OneOf<std::string>(
      {"fp16", "bf16", "fp16(order=cast_then_divide)",
       "bf16(order=cast_then_divide)", "fp16(allreduce)", "bf16(allreduce)",
       "stats(allreduce)", "noop",
       absl::StrCat("fp16(", LowRankSpec(draw), ")"),
       absl::StrCat("stats(", LowRankSpec(draw), ")"),
       absl::StrCat("int8(block=32,start_step=", start, ")"),
       absl::StrCat("batched_powersgd(rank=", 1 + start, ",start_step=2)")});
}

std::vector<int64_t> Shape(Draw& draw) {
  const auto some = [&draw] { return draw.Between(1, 6); };
  switch (draw.Between(0, 9)) {
    case 0:
      return {};
    case 1:
      return {some()};
    case 2:
      return draw.Chance(0.5) ? std::vector<int64_t>{0}
                              : std::vector<int64_t>{some(), 0};
    case 3:
      return {some(), some(), some()};
    case 4:
    case 5:
      return {some(), some(), draw.Between(1, 3), draw.Between(1, 3)};
    case 6:
      return {draw.Between(8, 24), draw.Between(8, 24)};
    default:
      return {some(), some()};
  }
}

Memory AnyMemory(Draw& draw, size_t axes) {
  if (draw.Chance(0.5)) return Memory::kDense;
  if (axes == 4 && draw.Chance(0.6)) return Memory::kChannelsLast;
  if (axes >= 2 && draw.Chance(0.5)) return Memory::kTransposed;
  return axes >= 1 ? Memory::kGaps : Memory::kDense;
}

ParameterCase AnyParameter(Draw& draw, int id, DType usual, int steps) {
  ParameterCase parameter;
  parameter.id = id;
  parameter.shape = Shape(draw);
  parameter.dtype = usual;
  if (draw.Chance(0.2)) {
    parameter.dtype = draw.OneOf<DType>(
        {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16});
  }
  parameter.memory = AnyMemory(draw, parameter.shape.size());
  parameter.shared = draw.Chance(0.1);
  if (id == 0) return parameter;
  if (draw.Chance(0.1)) {
    parameter.from = static_cast<int>(draw.Between(1, steps));
  } else if (draw.Chance(0.1)) {
    parameter.until = static_cast<int>(draw.Between(0, steps));
  }
  return parameter;
}

std::vector<Term> Terms(Draw& draw, int parameters) {
  std::vector<Term> terms;
  const auto any = [&] {
    return static_cast<int>(draw.Between(0, parameters - 1));
  };
  const auto kind = [&] { return static_cast<TermKind>(draw.Between(0, 9)); };
  for (int i = 0; i < parameters; ++i) {
    if (draw.Chance(0.9)) terms.push_back({kind(), i, any()});
  }
  const int64_t more = draw.Between(0, 3);
  for (int64_t i = 0; i < more; ++i) terms.push_back({kind(), any(), any()});
  return terms;
}

// Which terms a pass uses: all of them, some, or none.
uint32_t Uses(Draw& draw, size_t terms, double partial) {
  uint32_t uses = (uint32_t{1} << terms) - 1;
  if (!draw.Chance(partial)) return uses;
  if (draw.Chance(0.1)) return 0;
  for (size_t term = 0; term < terms; ++term) {
    if (draw.Chance(0.3)) uses &= ~(uint32_t{1} << term);
  }
  return uses;
}

// Terms that no rank uses in a step.
uint32_t Idle(Draw& draw, size_t terms, double partial) {
  uint32_t idle = 0;
  if (partial == 0 || draw.Chance(0.5)) return idle;
  for (size_t term = 0; term < terms; ++term) {
    if (draw.Chance(0.4)) idle |= uint32_t{1} << term;
  }
  return idle;
}

BucketPlanOptions BucketSizes(Draw& draw) {
  const auto bytes = [&draw] {
    return draw.OneOf<int64_t>({1, 16, 64, 256, 1024, 1 << 20});
  };
  const int64_t first = bytes();
  return {first, bytes()};
}

void DrawChanges(Draw& draw, const Case& one, StepCase& step) {
  if (draw.Chance(0.15)) step.buckets = BucketSizes(draw);
  if (draw.Chance(0.12)) {
    step.carry_state = draw.Chance(0.3);
    step.hook = step.carry_state ? one.hook : HookSpec(draw);
  }
  if (draw.Chance(0.5))
    step.change_before = static_cast<int>(draw.Between(0, 2));
}

StepCase AnyStep(Draw& draw, const Case& one, double partial,
                 const std::vector<int>& length, int number) {
  StepCase step;
  const uint32_t idle = Idle(draw, one.terms.size(), partial);
  const bool cut = one.accumulate > 1 && draw.Chance(0.15);
  for (int rank = 0; rank < one.world; ++rank) {
    auto& micros = step.uses.emplace_back();
    if (number >= length[static_cast<size_t>(rank)]) continue;
    const int64_t count = cut ? draw.Between(1, one.accumulate - 1)
                          : one.accumulate > 0 ? one.accumulate
                                               : draw.Between(1, 3);
    for (int64_t micro = 0; micro < count; ++micro) {
      micros.push_back(Uses(draw, one.terms.size(), partial) & ~idle);
    }
  }
  step.zero = static_cast<ZeroGrad>(draw.Between(0, 3));
  if (draw.Chance(0.3)) {
    step.ending = draw.Chance(0.5) ? Ending::kByHand : Ending::kDropped;
  }
  if (number > 0) DrawChanges(draw, one, step);
  return step;
}

void DrawOptions(Draw& draw, Case& one) {
  one.hook = HookSpec(draw);
  one.buckets = BucketSizes(draw);
  one.accumulate = draw.Chance(0.5) ? static_cast<int>(draw.Between(1, 4)) : 0;
  one.view = draw.Chance(0.5);
  one.rebuild = draw.Chance(0.6);
  one.find_unused = draw.Chance(0.4);
  one.uneven = draw.Chance(0.3);
  one.statistics = draw.Chance(0.3);
  if (draw.Chance(0.25)) one.max_norm = draw.OneOf<double>({0.5, 2, 1000});
  one.buffers = draw.Chance(0.3);
  one.broadcast_buffers = one.buffers && draw.Chance(0.7);
  one.static_graph = draw.Chance(0.15);
  one.overlapped = draw.Chance(0.15);
  if (!one.overlapped) return;
  one.max_norm = 0;
  one.find_unused = false;
}

// Returns how many steps each rank has data for; at least one rank has data for
// all.
std::vector<int> Lengths(Draw& draw, const Case& one, int steps) {
  std::vector<int> length(static_cast<size_t>(one.world), steps);
  if (!one.uneven) return length;
  const int64_t longest = draw.Between(0, one.world - 1);
  for (int rank = 0; rank < one.world; ++rank) {
    if (rank == longest) continue;
    length[static_cast<size_t>(rank)] =
        static_cast<int>(draw.Between(0, steps));
  }
  return length;
}

// Gives all passes of a rank that exchange the terms of the first one.
void MakeStatic(Case& one, size_t rank) {
  const uint32_t* uses = nullptr;
  for (StepCase& step : one.steps) {
    auto& micros = step.uses[rank];
    if (micros.empty() || Flushes(one, step, static_cast<int>(rank))) continue;
    if (uses != nullptr) micros.back() = *uses;
    uses = &micros.back();
  }
}

// Takes back what does not go together.
void Reconcile(Case& one) {
  StepCase* before = nullptr;
  std::string hook = one.hook;
  for (StepCase& step : one.steps) {
    if (step.carry_state) step.hook = hook;
    if (!step.hook.empty()) hook = step.hook;
    for (int rank = 0; rank < one.world; ++rank) {
      const bool flushes = Flushes(one, step, rank);
      const bool finished = step.uses[static_cast<size_t>(rank)].empty();
      if ((flushes || finished || one.overlapped) &&
          step.ending == Ending::kDropped) {
        step.ending = Ending::kByHand;
      }
      if (flushes && before != nullptr && Keeps(*before)) {
        before->zero = ZeroGrad::kZero;
      }
    }
    before = &step;
  }
}

}  // namespace

Case RandomCase(uint64_t seed) {
  Draw draw(seed);
  Case one;
  one.seed = seed;
  one.world = static_cast<int>(draw.Between(1, 4));
  DrawOptions(draw, one);
  const int steps = static_cast<int>(draw.Between(2, 6));
  const DType usual =
      draw.OneOf<DType>({DType::kFloat64, DType::kFloat64, DType::kFloat32});
  const int parameters = static_cast<int>(draw.Between(1, 7));
  for (int id = 0; id < parameters; ++id) {
    one.parameters.push_back(AnyParameter(draw, id, usual, steps));
  }
  one.terms = Terms(draw, parameters);
  const double partial = draw.Chance(0.4) ? 0 : 0.8;
  const std::vector<int> length = Lengths(draw, one, steps);
  for (int step = 0; step < steps; ++step) {
    one.steps.push_back(AnyStep(draw, one, partial, length, step));
  }
  Reconcile(one);
  for (int rank = 0; one.static_graph && rank < one.world; ++rank) {
    MakeStatic(one, static_cast<size_t>(rank));
  }
  COXSWAIN_CHECK(IsValid(one));
  return one;
}

}  // namespace coxswain::property
