#ifndef COXSWAIN_SCHEDULE_PLAN_H_
#define COXSWAIN_SCHEDULE_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "schedule/terms.h"

namespace coxswain::schedule {

// Beyond this no program ever comes, and sums of two do not overflow.
constexpr int64_t kMaxStep = int64_t{1} << 53;

// The spec of a hook.
constexpr size_t kMaxHookBytes = 4096;

// One value of a plan, for messages, JSON and tables.
struct NamedValue {
  std::string name;   // of the field in messages and JSON: accumulation_steps
  std::string word;   // in NAME=VALUE words: accumulation
  std::string text;   // as the word's value
  std::string shown;  // human-readable: "the hook's own" in place of -1
  std::optional<int64_t> number;  // in JSON, where the field is one
};

// The settings of a plan that have fields of their own in messages, which the
// terms have not: how many gradients a step sums up, and how it exchanges them.
struct StepSettings {
  int accumulation_steps = 1;  // micro-batches that a rank sums up in one step
  std::string hook;            // its spec
  // The step from which the hook compresses; -1: the hook's own start_step.
  int64_t compression_start_step = -1;

  // Returns all of them, in this order.
  std::vector<NamedValue> Values() const;
  // Sets the one with this word. Fails with INVALID_ARGUMENT, naming the word,
  // its value and the valid ones, or with NOT_FOUND if none has this name.
  absl::Status SetWord(absl::string_view word, absl::string_view value);
  // Fails with INVALID_ARGUMENT if the hook's spec is too long, or its start
  // is none; `prefix` stands before the field's name in the message.
  absl::Status Check(absl::string_view prefix) const;

  // Returns whether both make the same hook.
  bool SameHook(const StepSettings& other) const {
    return hook == other.hook &&
           compression_start_step == other.compression_start_step;
  }
  bool SameSettings(const StepSettings& other) const {
    return accumulation_steps == other.accumulation_steps && SameHook(other);
  }
};

// What a program asks for, and a plan fixes.
struct Settings : StepSettings {
  Terms terms;

  bool SameSettings(const Settings& other) const {
    return StepSettings::SameSettings(other) && terms == other.terms;
  }
};

// When gradients are exchanged, and with which hook: decided by the coordinator
// and followed by all ranks. Deterministic: a worker that has the plan sends no
// request while it trains. A value: copied, and used by one thread at a time.
struct Plan : Settings {
  int64_t version = 0;  // from 1; 0 is no plan
  // Micro-batches of all ranks in one step when the plan was made, each counted
  // once however many ranks compute it together; 0: not known.
  int64_t global_micro_batches = 0;
  // In force from this step of the running generation; kWithNextGeneration;
  // kAtNextStep.
  int64_t at_step = 0;
  static constexpr int64_t kWithNextGeneration = 0;
  static constexpr int64_t kAtNextStep = -1;

  // Takes over what a program asks for, or another plan's settings.
  void Use(const Settings& settings) {
    static_cast<Settings&>(*this) = settings;
  }

  // Ranks that compute the same micro-batches count as one here: where the
  // job's mesh has pp or tp, both numbers are those of DataPlaceOf.
  // Returns how many micro-batches this rank sums up in one step.
  int WindowOf(int rank, int world_size) const;

  // Returns whether each step begins with a header exchange, in which the ranks
  // exchange their weights: gradients cannot be averaged without it.
  bool needs_header(int world_size) const;
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_PLAN_H_
