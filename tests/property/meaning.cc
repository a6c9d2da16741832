#include "tests/property/meaning.h"

#include <cstdlib>

#include "base/check.h"
#include "hooks/spec.h"

namespace coxswain::property {
namespace {

std::string OptionOf(const Spec& spec, const std::string& name,
                     const std::string& usual) {
  for (const SpecOption& option : spec.options) {
    if (option.name == name) return option.value;
  }
  return usual;
}

int64_t NumberOf(const Spec& spec, const std::string& name, int64_t usual) {
  const std::string text = OptionOf(spec, name, "");
  return text.empty() ? usual : std::strtoll(text.c_str(), nullptr, 10);
}

reference::LowRankOptions LowRankOf(const Spec& spec) {
  reference::LowRankOptions options;
  options.alternating = spec.name == "acp_sgd";
  options.rank = NumberOf(spec, "rank", options.alternating ? 4 : 1);
  options.rate = static_cast<double>(NumberOf(spec, "min_compression_rate", 2));
  options.error_feedback = OptionOf(spec, "error_feedback", "true") == "true";
  options.warm_start = OptionOf(spec, "warm_start", "true") == "true";
  options.global_residual = OptionOf(spec, "mode", "local") == "pytorch";
  return options;
}

Meaning MeaningOfSpec(const Spec& spec) {
  Meaning meaning;
  const bool cast = spec.name == "fp16" || spec.name == "bf16";
  if (!spec.inner.empty()) meaning = MeaningOfSpec(spec.inner[0]);
  if (cast) {
    meaning.narrows = true;
    meaning.narrow = spec.name == "fp16" ? DType::kFloat16 : DType::kBFloat16;
    meaning.divide_first =
        OptionOf(spec, "order", "divide_then_cast") == "divide_then_cast";
  }
  if (!spec.inner.empty() || cast) return meaning;
  meaning.start = NumberOf(spec, "start_step", spec.name == "int8" ? 0 : 1000);
  if (spec.name == "noop") meaning.kind = Meaning::Kind::kLocal;
  if (spec.name == "powersgd" || spec.name == "acp_sgd") {
    meaning.kind = Meaning::Kind::kLowRank;
    meaning.low_rank = LowRankOf(spec);
  }
  if (spec.name == "int8" || spec.name == "batched_powersgd") {
    meaning.kind = Meaning::Kind::kFeedback;
  }
  return meaning;
}

}  // namespace

Meaning MeaningOf(const std::string& spec) {
  const absl::StatusOr<Spec> parsed = ParseSpec(spec);
  COXSWAIN_CHECK(parsed.ok());
  return MeaningOfSpec(*parsed);
}

}  // namespace coxswain::property
