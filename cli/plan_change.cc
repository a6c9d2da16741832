#include "cli/plan_change.h"

#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "hooks/registry/planned_hook.h"
#include "hooks/registry/registry.h"
#include "hooks/registry/yaml_spec.h"
#include "schedule/schedule_wire.h"
#include "server/describe/json.h"

namespace coxswain {
namespace {

// Removes `at` from the words and returns the step that it names.
absl::StatusOr<std::optional<int64_t>> TakeBeginning(
    schedule::PlanWords* words) {
  const auto at = words->find("at");
  std::optional<int64_t> step;
  if (at == words->end()) return step;
  const std::string value = std::move(at->second);
  words->erase(at);
  if (value == "next") {
    step = schedule::Plan::kAtNextStep;
  } else if (value == "generation") {
    step = schedule::Plan::kWithNextGeneration;
  } else if (int64_t number = 0;
             absl::SimpleAtoi(value, &number) && number >= 1) {
    step = number;
  }
  if (step.has_value()) return step;
  return absl::InvalidArgumentError(absl::StrCat(
      "at=", value, " is not valid: write next (the next step), generation ",
      "(the next generation) or a step, from 1"));
}

absl::Status MakeHookCanonical(schedule::PlanWords* words) {
  const auto hook = words->find("hook");
  if (hook == words->end()) return absl::OkStatus();
  absl::StatusOr<std::string> spec = ReadHookArgument(hook->second);
  if (!spec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("hook: ", spec.status().message()));
  }
  hook->second = *std::move(spec);
  return absl::OkStatus();
}

bool NamesHook(const schedule::PlanWords& words) {
  return words.count("hook") > 0 || words.count("compression_start") > 0;
}

// Does what workers do when they change from one hook to another, without
// parameters. Fails as the new hook's LoadState if the state does not fit.
absl::Status CarryState(const std::string& from, const std::string& to) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Hook> before, MakeHook(from));
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<Hook> after, MakeHook(to));
  COXSWAIN_RETURN_IF_ERROR(before->Configure({}, 1));
  COXSWAIN_RETURN_IF_ERROR(after->Configure({}, 1));
  LoopbackCommunicator alone;
  COXSWAIN_ASSIGN_OR_RETURN(const HookState state, before->SaveState(alone));
  return after->LoadState(state, 0, 1);
}

bool Averages(const std::string& hook) {
  const auto averager = MakeAverager(hook);
  return averager.ok() && *averager != nullptr;
}

// A hook that only the workers know has no other spec than the plan's.
std::string SpecOf(const schedule::Plan& plan) {
  return PlannedSpec(plan).value_or(plan.hook);
}

}  // namespace

absl::StatusOr<PlanChange> PlanChange::Parse(
    const std::vector<std::string>& words) {
  PlanChange change;
  COXSWAIN_ASSIGN_OR_RETURN(change.words, schedule::ParsePlanWords(words));
  COXSWAIN_ASSIGN_OR_RETURN(change.at_step, TakeBeginning(&change.words));
  schedule::Settings scratch;
  COXSWAIN_RETURN_IF_ERROR(schedule::ApplyPlanWords(change.words, &scratch));
  COXSWAIN_RETURN_IF_ERROR(MakeHookCanonical(&change.words));
  if (change.words.count("hook") > 0) {
    scratch.hook = change.words["hook"];
    COXSWAIN_RETURN_IF_ERROR(PlannedSpec(scratch).status());
  }
  return change;
}

absl::StatusOr<schedule::Plan> PlanChange::ApplyTo(schedule::Plan plan) const {
  COXSWAIN_RETURN_IF_ERROR(schedule::ApplyPlanWords(words, &plan));
  const absl::Status fits =
      NamesHook(words) ? PlannedSpec(plan).status() : absl::OkStatus();
  if (!fits.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compression_start=",
        schedule::PlanWordsOf(plan).at("compression_start"), ": ",
        fits.message(), "; compression_start=-1 leaves it to the hook"));
  }
  COXSWAIN_RETURN_IF_ERROR(plan.terms.Validate());
  return plan;
}

absl::StatusOr<std::string> ReadPlanOverrides(
    const std::vector<std::string>& texts) {
  std::vector<std::string> words;
  for (const std::string& text : texts) {
    for (std::string& word : schedule::SplitPlanText(text)) {
      words.push_back(std::move(word));
    }
  }
  COXSWAIN_ASSIGN_OR_RETURN(const PlanChange change, PlanChange::Parse(words));
  if (change.at_step.has_value()) {
    return absl::InvalidArgumentError(
        "at=... cannot be given here: the job begins with this plan");
  }
  schedule::Settings settings;
  COXSWAIN_RETURN_IF_ERROR(schedule::ApplyPlanWords(change.words, &settings));
  COXSWAIN_RETURN_IF_ERROR(settings.terms.Validate());
  return schedule::FormatPlanWords(change.words);
}

bool ChangesAverager(const schedule::Plan& from, const schedule::Plan& to) {
  const std::string before = SpecOf(from);
  const std::string after = SpecOf(to);
  return before != after && (Averages(before) || Averages(after));
}

absl::Status CheckChangeWithinGeneration(const schedule::Plan& from,
                                         const schedule::Plan& to) {
  const std::string before = SpecOf(from);
  const std::string after = SpecOf(to);
  if (before == after) return absl::OkStatus();
  if (Averages(before) && !Averages(after)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "with the hook ", before,
        " each rank's optimizer has its own state, which a change of plans "
        "does "
        "not synchronize: with ",
        after, " the ranks would drift apart; write at=generation"));
  }
  if (to.terms.hook_state != schedule::HookStatePolicy::kCarry) {
    return absl::OkStatus();
  }
  const absl::Status carried = CarryState(before, after);
  if (carried.ok()) return carried;
  return absl::InvalidArgumentError(absl::StrCat(
      "the hook ", after, " cannot go on from the state of ", before, " (",
      carried.message(),
      "); write hook_state=reset to begin without it, or at=generation"));
}

std::vector<std::string> Differences(const v1::Plan& from, const v1::Plan& to) {
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& name, const std::string& before,
                           const std::string& after) {
    if (before == after) return;
    differences.push_back(absl::StrCat(name, " ", before, " -> ", after));
  };
  const std::vector<schedule::NamedValue> old = server::ValuesOf(from);
  const std::vector<schedule::NamedValue> changed = server::ValuesOf(to);
  for (size_t i = 0; i < old.size(); ++i) {
    compare(old[i].word, old[i].shown, changed[i].shown);
  }
  const auto before = server::AllTerms(from);
  for (const auto& [name, value] : server::AllTerms(to)) {
    const auto found = before.find(name);
    compare(name, found == before.end() ? "unknown" : found->second, value);
  }
  return differences;
}

std::string BeginningText(int64_t at_step) {
  if (at_step == schedule::Plan::kWithNextGeneration)
    return "the next generation";
  if (at_step == schedule::Plan::kAtNextStep) return "the next step";
  return absl::StrCat("step ", at_step);
}

}  // namespace coxswain
