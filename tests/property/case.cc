#include "tests/property/case.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coxswain::property {
namespace {

constexpr const char* kMemories[] = {"kDense", "kTransposed", "kGaps",
                                     "kChannelsLast"};
constexpr const char* kKinds[] = {
    "kLinear",     "kSquare", "kTwice",       "kSum",     "kSlice",
    "kTransposed", "kMatmul", "kConvolution", "kProduct", "kChain"};
constexpr const char* kZeros[] = {"kNone", "kZero", "kKeep", "kShift"};
constexpr const char* kEndings[] = {"kBackward", "kByHand", "kDropped"};

std::string TypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "DType::kFloat64";
    case DType::kFloat16:
      return "DType::kFloat16";
    case DType::kBFloat16:
      return "DType::kBFloat16";
    default:
      return "DType::kFloat32";
  }
}

bool ParametersAreValid(const Case& one) {
  bool any = false;
  for (const ParameterCase& parameter : one.parameters) {
    const size_t axes = parameter.shape.size();
    if (parameter.memory == Memory::kChannelsLast && axes != 4) return false;
    if (parameter.memory == Memory::kTransposed && axes < 2) return false;
    if (parameter.memory == Memory::kGaps && axes < 1) return false;
    any = any || (parameter.from == 0 && parameter.until == kAlways);
  }
  return any;  // else there may be nothing to train
}

bool TermsAreValid(const Case& one) {
  const int count = static_cast<int>(one.parameters.size());
  return one.terms.size() <= 32 &&
         std::all_of(one.terms.begin(), one.terms.end(), [&](const Term& term) {
           return term.a >= 0 && term.a < count && term.b >= 0 &&
                  term.b < count;
         });
}

// `before` is null for the first step.
bool StepIsValid(const Case& one, const StepCase& step,
                 const StepCase* before) {
  if (step.uses.size() != static_cast<size_t>(one.world)) return false;
  bool data = false;
  bool together = true;
  for (int rank = 0; rank < one.world; ++rank) {
    const size_t micros = step.uses[static_cast<size_t>(rank)].size();
    data = data || micros > 0;
    const bool flushes = Flushes(one, step, rank);
    together = together && micros > 0 && !flushes;
    if (micros == 0 && !one.uneven) return false;
    if (one.accumulate > 0 && micros > static_cast<size_t>(one.accumulate)) {
      return false;
    }
    if (before == nullptr) continue;
    if (micros > 0 && before->uses[static_cast<size_t>(rank)].empty()) {
      return false;  // data does not come back
    }
    // Flush would rescale what the last step left, too.
    if (flushes && Keeps(*before)) return false;
  }
  // Flush and StepWithoutData apply their steps.
  return data && (together || step.ending != Ending::kDropped);
}

// Returns whether the passes of a rank that exchange all use the same terms.
bool GraphIsStatic(const Case& one, int rank) {
  const uint32_t* uses = nullptr;
  for (const StepCase& step : one.steps) {
    const auto& micros = step.uses[static_cast<size_t>(rank)];
    if (micros.empty() || Flushes(one, step, rank)) continue;
    if (uses != nullptr && *uses != micros.back()) return false;
    uses = &micros.back();
  }
  return true;
}

bool OptionsAreValid(const Case& one) {
  if (one.broadcast_buffers && !one.buffers) return false;
  for (int rank = 0; one.static_graph && rank < one.world; ++rank) {
    if (!GraphIsStatic(one, rank)) return false;
  }
  if (!one.overlapped) return true;
  for (const StepCase& step : one.steps) {
    if (step.ending == Ending::kDropped) return false;
  }
  return one.max_norm == 0 && !one.find_unused;
}

std::string TextOf(const ParameterCase& parameter) {
  std::string text = absl::StrCat(
      "{", parameter.id, ", {", absl::StrJoin(parameter.shape, ", "), "}, ",
      TypeName(parameter.dtype),
      ", Memory::", kMemories[static_cast<int>(parameter.memory)], ", ",
      parameter.shared ? "true" : "false", ", ", parameter.from, ", ");
  const bool always = parameter.until == kAlways;
  return absl::StrCat(text, always ? "kAlways" : absl::StrCat(parameter.until),
                      "}");
}

std::string TextOf(const BucketPlanOptions& buckets) {
  return absl::StrCat("{", buckets.first_bucket_bytes, ", ",
                      buckets.bucket_bytes, "}");
}

std::string TextOf(const StepCase& step) {
  std::vector<std::string> ranks;
  for (const auto& micros : step.uses) {
    ranks.push_back(absl::StrCat("{", absl::StrJoin(micros, ", "), "}"));
  }
  return absl::StrCat("{{", absl::StrJoin(ranks, ", "),
                      "}, Ending::", kEndings[static_cast<int>(step.ending)],
                      ", ZeroGrad::", kZeros[static_cast<int>(step.zero)], ", ",
                      step.change_before, ", \"", step.hook, "\", ",
                      step.carry_state ? "true" : "false", ", ",
                      TextOf(step.buckets), "}");
}

// Statements for what is not as in a new Case.
std::string OptionsText(const Case& one) {
  const Case plain;
  std::string text = absl::StrCat("one.hook = \"", one.hook, "\";\n",
                                  "one.buckets = ", TextOf(one.buckets), ";\n");
  const auto flag = [&text](const char* name, bool value, bool usual) {
    if (value == usual) return;
    absl::StrAppend(&text, "one.", name, " = ", value ? "true" : "false",
                    ";\n");
  };
  if (one.accumulate != plain.accumulate) {
    absl::StrAppend(&text, "one.accumulate = ", one.accumulate, ";\n");
  }
  flag("view", one.view, plain.view);
  flag("rebuild", one.rebuild, plain.rebuild);
  flag("find_unused", one.find_unused, plain.find_unused);
  flag("uneven", one.uneven, plain.uneven);
  flag("static_graph", one.static_graph, plain.static_graph);
  flag("overlapped", one.overlapped, plain.overlapped);
  flag("statistics", one.statistics, plain.statistics);
  if (one.max_norm != plain.max_norm) {
    absl::StrAppend(&text, "one.max_norm = ", one.max_norm, ";\n");
  }
  flag("buffers", one.buffers, plain.buffers);
  flag("broadcast_buffers", one.broadcast_buffers, plain.broadcast_buffers);
  return text;
}

}  // namespace

bool Flushes(const Case& one, const StepCase& step, int rank) {
  const size_t micros = step.uses[static_cast<size_t>(rank)].size();
  return micros > 0 && static_cast<int>(micros) < one.accumulate;
}

bool Keeps(const StepCase& step) {
  return step.zero == ZeroGrad::kKeep || step.zero == ZeroGrad::kShift;
}

bool IsTrainable(const ParameterCase& parameter, int step) {
  return parameter.from <= step && step < parameter.until;
}

bool IsValid(const Case& one) {
  if (one.world < 1 || one.steps.empty()) return false;
  if (!ParametersAreValid(one) || !TermsAreValid(one)) return false;
  const StepCase* before = nullptr;
  std::string hook = one.hook;
  for (const StepCase& step : one.steps) {
    if (!StepIsValid(one, step, before)) return false;
    // A state is for a hook of its kind.
    if (step.carry_state && step.hook != hook) return false;
    if (!step.hook.empty()) hook = step.hook;
    before = &step;
  }
  return OptionsAreValid(one);
}

int64_t SizeOfCase(const Case& one) {
  int64_t size = one.world + static_cast<int64_t>(one.terms.size());
  for (const ParameterCase& parameter : one.parameters) {
    int64_t count = 1;
    for (const int64_t extent : parameter.shape) {
      count *= std::max<int64_t>(1, extent);
    }
    size += 1 + count;
  }
  for (const StepCase& step : one.steps) {
    for (const auto& micros : step.uses) {
      size += static_cast<int64_t>(micros.size());
    }
  }
  return size;
}

std::string ToText(const Case& one) {
  std::string text =
      absl::StrCat("Case one;\none.seed = ", one.seed,
                   ";\none.world = ", one.world, ";\none.parameters = {\n");
  for (const ParameterCase& parameter : one.parameters) {
    absl::StrAppend(&text, "    ", TextOf(parameter), ",\n");
  }
  absl::StrAppend(&text, "};\none.terms = {\n");
  for (const Term& term : one.terms) {
    absl::StrAppend(&text,
                    "    {TermKind::", kKinds[static_cast<int>(term.kind)],
                    ", ", term.a, ", ", term.b, "},\n");
  }
  absl::StrAppend(&text, "};\none.steps = {\n");
  for (const StepCase& step : one.steps) {
    absl::StrAppend(&text, "    ", TextOf(step), ",\n");
  }
  return absl::StrCat(text, "};\n", OptionsText(one));
}

}  // namespace coxswain::property
