#include "tests/property/stress_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

constexpr int kCleanSteps = 4;
// A sabotaged generation is broken long before.
constexpr int kMostSteps = 40;
// Only reached by ranks that get no answer: see kAbsent.
constexpr absl::Duration kPlanTimeout = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(30);

const char* NameOf(Trouble trouble) {
  static constexpr std::array<const char*, 10> kNames = {
      "nothing",
      "Abort",
      "abort of the communicator",
      "destroyed",
      "marks twice",
      "a collective fails",
      "hook fails",
      "on_average fails",
      "tiny timeout",
      "absent"};
  return kNames[static_cast<size_t>(trouble)];
}

const char* NameOf(Moment moment) {
  static constexpr std::array<const char*, 9> kNames = {
      "before BeginStep", "after BeginStep", "after a mark",
      "before Finish",    "in Finish",       "after Finish",
      "in Commit",        "in a change",     "in a collective"};
  return kNames[static_cast<size_t>(moment)];
}

Sabotage DrawSabotage(Draw& draw) {
  Sabotage sabotage;
  sabotage.trouble = draw.Of<Trouble>(
      {Trouble::kAbort, Trouble::kAbort, Trouble::kAbort, Trouble::kDestroy,
       Trouble::kDestroy, Trouble::kAbortCommunicator,
       Trouble::kAbortCommunicator, Trouble::kMarkTwice,
       Trouble::kFailCollective, Trouble::kFailHook, Trouble::kFailOnAverage,
       Trouble::kTimeout, Trouble::kAbsent});
  sabotage.step = draw.Below(4);
  sabotage.count = draw.Below(draw.Of<int>({2, 10, 30}));
  switch (sabotage.trouble) {
    case Trouble::kDestroy:
      sabotage.moment = draw.Of<Moment>(
          {Moment::kBeforeBegin, Moment::kAfterBegin, Moment::kAfterMark,
           Moment::kBeforeFinish, Moment::kAfterFinish});
      break;
    case Trouble::kMarkTwice:
      sabotage.moment = Moment::kAfterMark;
      break;
    case Trouble::kAbsent:
      sabotage.step = 0;
      break;
    default:
      sabotage.moment = static_cast<Moment>(draw.Below(9));
  }
  if (sabotage.moment == Moment::kAfterMark) {
    sabotage.count = 1 + draw.Below(6);
  }
  return sabotage;
}

BucketPlanOptions DrawBuckets(Draw& draw) {
  BucketPlanOptions buckets;
  buckets.first_bucket_bytes = draw.Of<int64_t>({1, 64, 512, 4096});
  buckets.bucket_bytes = draw.Of<int64_t>({1, 256, 1024, 1 << 20});
  return buckets;
}

ReducerOptions DrawOptions(Draw& draw) {
  ReducerOptions options;
  options.buckets = DrawBuckets(draw);
  options.rebuild = !draw.OneIn(4);
  options.find_unused_parameters = draw.OneIn(3);
  options.uneven_inputs = draw.OneIn(3);
  options.statistics = draw.OneIn(2);
  if (draw.OneIn(3)) options.max_norm = draw.Of<double>({0.5, 1e6});
  options.verify = !draw.OneIn(8);
  options.timeout = kPlanTimeout;
  return options;
}

double Weight(const GenerationPlan& generation, int rank, int step) {
  if (!generation.options.uneven_inputs) return 1;
  // There is always one with data.
  if (rank == step % generation.world_size) return 1;
  Draw draw(generation.key, Mix64(static_cast<uint64_t>(step * 64 + rank)));
  return draw.Of<double>({1, 2, 0.5, 0});
}

// Shuffles, and leaves some out.
std::vector<MarkPlan> DrawMarks(Draw& draw, int parameters, int unreached) {
  std::vector<MarkPlan> marks;
  for (int parameter = 0; parameter < parameters; ++parameter) {
    MarkPlan mark;
    mark.parameter = parameter;
    mark.how = static_cast<MarkPlan::How>(draw.Below(3));
    mark.used = parameter != unreached && !draw.OneIn(8);
    if (mark.used || draw.OneIn(2)) marks.push_back(mark);
  }
  for (size_t left = marks.size(); left > 1; --left) {
    std::swap(marks[left - 1],
              marks[static_cast<size_t>(draw.Below(static_cast<int>(left)))]);
  }
  return marks;
}

}  // namespace

std::string Sabotage::ToString() const {
  if (trouble == Trouble::kNone) return "-";
  return absl::StrCat(NameOf(trouble), " ", NameOf(moment), " (step ", step,
                      ", count ", count, ")");
}

std::string FleetPlan::ToString() const {
  return absl::StrCat("seed ", seed, ": ", world_size, " ranks, ", hook, ", ",
                      coxswain::NameOf(dtype), tcp ? ", tcp" : "");
}

bool GenerationPlan::sabotaged() const { return saboteurs() > 0; }

int GenerationPlan::saboteurs() const {
  return static_cast<int>(std::count_if(
      sabotage.begin(), sabotage.end(),
      [](const Sabotage& one) { return one.trouble != Trouble::kNone; }));
}

bool GenerationPlan::any(Trouble trouble) const {
  return std::any_of(
      sabotage.begin(), sabotage.end(),
      [=](const Sabotage& one) { return one.trouble == trouble; });
}

int GenerationPlan::first_trouble() const {
  int first = steps;
  for (const Sabotage& one : sabotage) {
    if (one.trouble == Trouble::kNone) continue;
    const bool any_time = one.moment == Moment::kInCollective ||
                          one.trouble == Trouble::kFailCollective ||
                          one.trouble == Trouble::kFailHook ||
                          one.trouble == Trouble::kTimeout;
    first = std::min(first, any_time ? 0 : one.step);
  }
  return first;
}

std::string GenerationPlan::ToString() const {
  std::string text = absl::StrCat(
      "generation ", number, ", ", marking_threads, " threads, buckets ",
      options.buckets.first_bucket_bytes, "/", options.buckets.bucket_bytes,
      options.rebuild ? ", rebuild" : "",
      options.find_unused_parameters ? ", unused" : "",
      options.uneven_inputs ? ", uneven" : "",
      options.statistics ? ", statistics" : "",
      options.max_norm > 0 ? absl::StrCat(", clip ", options.max_norm) : "",
      options.verify ? "" : ", unverified", on_average ? ", on_average" : "");
  for (const Sabotage& one : sabotage) {
    absl::StrAppend(&text, "; ", one.ToString());
  }
  return text;
}

FleetPlan PlanFleet(uint64_t seed) {
  Draw draw(seed, StableHash("fleet"));
  FleetPlan plan;
  plan.seed = seed;
  plan.world_size = 2 + draw.Below(3);
  plan.hook = draw.Of<std::string>(
      {"allreduce", "allreduce", "bf16", "int8",
       "powersgd(rank=2,start_step=3)",
       "powersgd(rank=1,start_step=2,batch_same_shape=true)",
       "stats(powersgd(rank=2,start_step=5))", "stats(int8(start_step=2))",
       "stats(allreduce)", "fp16(powersgd(rank=2,start_step=2))"});
  plan.tcp = draw.OneIn(5);
  plan.dtype = draw.Of<DType>({DType::kFloat32, DType::kFloat64});
  return plan;
}

GenerationPlan PlanGeneration(const FleetPlan& fleet, int number) {
  GenerationPlan plan;
  plan.number = number;
  plan.world_size = fleet.world_size;
  plan.key = Mix64(fleet.seed ^ Mix64(static_cast<uint64_t>(number)));
  Draw draw(plan.key, StableHash("generation"));
  plan.options = DrawOptions(draw);
  plan.on_average = draw.OneIn(3);
  plan.marking_threads = 1 + draw.Below(3);
  plan.sabotage.resize(static_cast<size_t>(fleet.world_size));
  plan.steps = kCleanSteps;
  // The first one is clean, and so is the last.
  if (number % 4 != 0 && number + 1 < fleet.generations) {
    plan.steps = kMostSteps;
    const int first = draw.Below(fleet.world_size);
    plan.sabotage[static_cast<size_t>(first)] = DrawSabotage(draw);
    for (Sabotage& one : plan.sabotage) {
      if (draw.OneIn(6)) one = DrawSabotage(draw);
    }
  }
  if (plan.any(Trouble::kAbsent)) plan.options.timeout = kShort;
  if (plan.any(Trouble::kFailOnAverage)) plan.on_average = true;
  if (plan.on_average) {
    plan.options.max_norm = 0;
    plan.options.find_unused_parameters = false;
  }
  return plan;
}

StepPlan PlanStep(const GenerationPlan& generation, int parameters, int rank,
                  int step) {
  StepPlan plan;
  double sum = 0;
  for (int i = 0; i < generation.world_size; ++i) {
    sum += Weight(generation, i, step);
  }
  plan.weight = Weight(generation, rank, step);
  plan.share =
      plan.weight > 0 ? plan.weight / sum : 1.0 / generation.world_size;
  Draw shared(generation.key, Mix64(static_cast<uint64_t>(step)));
  plan.change_buckets = shared.OneIn(4);
  plan.buckets = DrawBuckets(shared);
  if (shared.OneIn(4)) {
    plan.broadcast_root = shared.Below(generation.world_size);
  }
  const int unreached = shared.Below(2 * parameters);
  Draw own(generation.key,
           Mix64(static_cast<uint64_t>(1'000'000 + step * 64 + rank)));
  if (plan.weight > 0) plan.marks = DrawMarks(own, parameters, unreached);
  return plan;
}

Gradients StressGradients(const std::vector<ParameterSpec>& parameters,
                          const GenerationPlan& generation, int rank,
                          int step) {
  const CounterRandom random(
      generation.key,
      Mix64(static_cast<uint64_t>(5'000'000 + step * 64 + rank)));
  Gradients gradients;
  uint64_t next = 0;
  for (const ParameterSpec& parameter : parameters) {
    std::vector<double>& values = gradients.emplace_back();
    for (int64_t i = 0; i < parameter.count(); ++i) {
      values.push_back(static_cast<double>(random.Bits(next++) % 257) / 64 - 2);
    }
  }
  return gradients;
}

Gradients Contribution(const std::vector<ParameterSpec>& parameters,
                       const GenerationPlan& generation, int rank, int step) {
  const StepPlan plan =
      PlanStep(generation, static_cast<int>(parameters.size()), rank, step);
  const Gradients own = StressGradients(parameters, generation, rank, step);
  Gradients result;
  for (const ParameterSpec& parameter : parameters) {
    result.emplace_back(static_cast<size_t>(parameter.count()), 0.0);
  }
  for (const MarkPlan& mark : plan.marks) {
    const auto p = static_cast<size_t>(mark.parameter);
    result[p] = own[p];
  }
  return result;
}

}  // namespace coxswain
