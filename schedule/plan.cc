#include "schedule/plan.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coxswain::schedule {
namespace {

// How one field is read and printed.
struct SettingField {
  const char* name;
  const char* word;
  const char* values;
  bool (*parse)(absl::string_view value, StepSettings* settings);
  std::string (*format)(const StepSettings& settings);
  // Null for texts.
  int64_t (*number)(const StepSettings& settings);
  // Null where it is the same as `format`.
  std::string (*show)(const StepSettings& settings);
};

bool ParseNumber(absl::string_view value, int64_t least, int64_t most,
                 int64_t* number) {
  return absl::SimpleAtoi(value, number) && *number >= least && *number <= most;
}

constexpr SettingField kSettings[] = {
    {"accumulation_steps", "accumulation",
     "the micro-batches of a step, from 1",
     [](absl::string_view value, StepSettings* settings) {
       int64_t number = 0;
       const bool valid =
           ParseNumber(value, 1, std::numeric_limits<int>::max(), &number);
       if (valid) settings->accumulation_steps = static_cast<int>(number);
       return valid;
     },
     [](const StepSettings& settings) {
       return absl::StrCat(settings.accumulation_steps);
     },
     [](const StepSettings& settings) {
       return int64_t{settings.accumulation_steps};
     },
     nullptr},
    {"hook", "hook", "a hook's spec",
     [](absl::string_view value, StepSettings* settings) {
       if (!value.empty()) settings->hook = std::string(value);
       return !value.empty();
     },
     [](const StepSettings& settings) { return settings.hook; }, nullptr,
     nullptr},
    {"compression_start_step", "compression_start",
     "a step, from 0, or -1 for the hook's own start_step",
     [](absl::string_view value, StepSettings* settings) {
       int64_t number = 0;
       const bool valid =
           ParseNumber(value, -1, std::numeric_limits<int64_t>::max(), &number);
       if (valid) settings->compression_start_step = number;
       return valid;
     },
     [](const StepSettings& settings) {
       return absl::StrCat(settings.compression_start_step);
     },
     [](const StepSettings& settings) {
       return settings.compression_start_step;
     },
     [](const StepSettings& settings) {
       return settings.compression_start_step < 0
                  ? std::string("the hook's own")
                  : absl::StrCat(settings.compression_start_step);
     }},
};

}  // namespace

std::vector<NamedValue> StepSettings::Values() const {
  std::vector<NamedValue> values;
  for (const SettingField& field : kSettings) {
    NamedValue& value = values.emplace_back();
    value.name = field.name;
    value.word = field.word;
    value.text = field.format(*this);
    value.shown = field.show == nullptr ? value.text : field.show(*this);
    if (field.number != nullptr) value.number = field.number(*this);
  }
  return values;
}

absl::Status StepSettings::SetWord(absl::string_view word,
                                   absl::string_view value) {
  for (const SettingField& field : kSettings) {
    if (field.word != word) continue;
    if (field.parse(value, this)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(word, "=", value, " is not valid: it is ", field.values));
  }
  return absl::NotFoundError(word);
}

absl::Status StepSettings::Check(absl::string_view prefix) const {
  if (hook.size() > kMaxHookBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(prefix, "hook must have at most ", kMaxHookBytes,
                     " bytes, not ", hook.size()));
  }
  if (compression_start_step < -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        prefix, "compression_start_step must be at least 0, or -1 for the ",
        "hook's own, not ", compression_start_step));
  }
  return absl::OkStatus();
}

int Plan::WindowOf(int rank, int world_size) const {
  if (terms.on_resize == OnResize::kKeepLocalBatch ||
      global_micro_batches == 0) {
    return accumulation_steps;
  }
  return MicroBatchShare(global_micro_batches, world_size, rank);
}

bool Plan::needs_header(int world_size) const {
  return terms.weighting != Weighting::kMean ||
         terms.uneven_data != UnevenData::kRefuse ||
         WindowOf(0, world_size) != WindowOf(world_size - 1, world_size);
}

}  // namespace coxswain::schedule
