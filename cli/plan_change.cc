#include "cli/plan_change.h"

#include <limits>
#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/schedule_terms.h"
#include "base/status_macros.h"
#include "client/comm/in_process/loopback_communicator.h"
#include "hooks/registry/registry.h"
#include "hooks/registry/yaml_spec.h"

namespace coxswain {
namespace {

struct Word {
  std::string name;
  std::string value;
};

absl::StatusOr<std::vector<Word>> SplitWords(
    const std::vector<std::string>& texts) {
  std::vector<Word> words;
  std::set<std::string> seen;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is not NAME=VALUE, as in accumulation=8"));
    }
    Word word{text.substr(0, equals), text.substr(equals + 1)};
    if (!seen.insert(word.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(word.name, " is given twice"));
    }
    words.push_back(std::move(word));
  }
  return words;
}

// Not within parentheses, where a hook spec may have some.
void SplitAtSpaces(absl::string_view text, std::vector<std::string>* pieces) {
  int depth = 0;
  bool within = false;
  for (const char c : text) {
    if (depth == 0 && absl::ascii_isspace(c)) {
      within = false;
      continue;
    }
    if (!within) pieces->emplace_back();
    within = true;
    pieces->back().push_back(c);
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
  }
}

bool IsTerm(absl::string_view name) {
  for (const ScheduleTermInfo& term : ScheduleTermList()) {
    if (term.name == name) return true;
  }
  return false;
}

std::string TermNames() {
  return absl::StrJoin(ScheduleTermList(), ", ",
                       [](std::string* out, const ScheduleTermInfo& term) {
                         out->append(term.name);
                       });
}

absl::Status WrongValue(const Word& word, absl::string_view right) {
  return absl::InvalidArgumentError(
      absl::StrCat(word.name, "=", word.value, " is not valid: it is ", right));
}

absl::Status ReadNumber(const Word& word, int64_t least, int64_t most,
                        absl::string_view right, int64_t* number) {
  if (absl::SimpleAtoi(word.value, number) && *number >= least &&
      *number <= most) {
    return absl::OkStatus();
  }
  return WrongValue(word, right);
}

absl::StatusOr<int64_t> ReadBeginning(const Word& word) {
  if (word.value == "next") return kAtNextStep;
  if (word.value == "generation") return kWithNextGeneration;
  int64_t step = 0;
  COXSWAIN_RETURN_IF_ERROR(
      ReadNumber(word, 1, std::numeric_limits<int64_t>::max(),
                 "next (the next step), generation (the next generation) or a "
                 "step, from 1",
                 &step));
  return step;
}

absl::StatusOr<std::string> ReadHook(const Word& word) {
  absl::StatusOr<std::string> spec = ReadHookArgument(word.value);
  if (spec.ok()) return spec;
  return absl::InvalidArgumentError(
      absl::StrCat("hook: ", spec.status().message()));
}

absl::Status ReadWord(const Word& word, PlanChange& change) {
  int64_t number = 0;
  if (word.name == "accumulation") {
    COXSWAIN_RETURN_IF_ERROR(
        ReadNumber(word, 1, std::numeric_limits<int>::max(),
                   "the micro-batches of a step, from 1", &number));
    change.accumulation = static_cast<int>(number);
    return absl::OkStatus();
  }
  if (word.name == "hook") {
    COXSWAIN_ASSIGN_OR_RETURN(change.hook, ReadHook(word));
    return absl::OkStatus();
  }
  if (word.name == "compression_start") {
    COXSWAIN_RETURN_IF_ERROR(ReadNumber(
        word, -1, std::numeric_limits<int64_t>::max(),
        "a step, from 0, or -1 for the hook's own start_step", &number));
    change.compression_start = number;
    return absl::OkStatus();
  }
  if (word.name == "at") {
    COXSWAIN_ASSIGN_OR_RETURN(change.at_step, ReadBeginning(word));
    return absl::OkStatus();
  }
  if (!IsTerm(word.name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plan has nothing called \"", word.name,
                     "\"; there are accumulation, hook, compression_start, ",
                     TermNames(), ", and at, which says where it begins"));
  }
  ScheduleTerms scratch;
  COXSWAIN_RETURN_IF_ERROR(scratch.Set(word.name, word.value));
  change.terms[word.name] = word.value;
  return absl::OkStatus();
}

// What workers do when they change over from one hook to another, without
// parameters: the new one says itself whether the state fits.
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

// The spec that workers make their hook of.
std::string PlannedSpec(const v1::Plan& plan) {
  if (plan.compression_start_step() < 0) return plan.hook();
  const auto spec = WithStartStep(plan.hook(), plan.compression_start_step());
  return spec.ok() ? *spec : plan.hook();
}

}  // namespace

absl::StatusOr<PlanChange> PlanChange::Parse(
    const std::vector<std::string>& words) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::vector<Word> split, SplitWords(words));
  PlanChange change;
  for (const Word& word : split) {
    COXSWAIN_RETURN_IF_ERROR(ReadWord(word, change));
  }
  if (change.hook.has_value() && change.compression_start.value_or(-1) >= 0) {
    COXSWAIN_RETURN_IF_ERROR(
        WithStartStep(*change.hook, *change.compression_start).status());
  }
  return change;
}

absl::StatusOr<v1::Plan> PlanChange::ApplyTo(v1::Plan plan) const {
  if (accumulation.has_value()) plan.set_accumulation_steps(*accumulation);
  if (hook.has_value()) plan.set_hook(*hook);
  if (compression_start.has_value()) {
    plan.set_compression_start_step(*compression_start);
  }
  if (plan.compression_start_step() >= 0 &&
      (hook.has_value() || compression_start.has_value())) {
    const absl::Status fits =
        WithStartStep(plan.hook(), plan.compression_start_step()).status();
    if (!fits.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "compression_start=", plan.compression_start_step(), ": ",
          fits.message(), "; compression_start=-1 leaves it to the hook"));
    }
  }
  for (const auto& [name, value] : terms) (*plan.mutable_terms())[name] = value;
  COXSWAIN_ASSIGN_OR_RETURN(
      const ScheduleTerms all,
      ScheduleTerms::FromMap({plan.terms().begin(), plan.terms().end()}));
  COXSWAIN_RETURN_IF_ERROR(all.Validate());
  return plan;
}

absl::StatusOr<std::string> ReadPlanOverrides(
    const std::vector<std::string>& texts) {
  std::vector<std::string> pieces;
  for (const std::string& text : texts) SplitAtSpaces(text, &pieces);
  COXSWAIN_ASSIGN_OR_RETURN(const PlanChange change, PlanChange::Parse(pieces));
  if (change.at_step.has_value()) {
    return absl::InvalidArgumentError(
        "at has no meaning here: a job begins with it");
  }
  COXSWAIN_ASSIGN_OR_RETURN(const ScheduleTerms terms,
                            ScheduleTerms::FromMap(change.terms));
  COXSWAIN_RETURN_IF_ERROR(terms.Validate());
  std::map<std::string, std::string> words = change.terms;
  if (change.accumulation.has_value()) {
    words["accumulation"] = absl::StrCat(*change.accumulation);
  }
  if (change.hook.has_value()) words["hook"] = *change.hook;
  if (change.compression_start.has_value()) {
    words["compression_start"] = absl::StrCat(*change.compression_start);
  }
  return absl::StrJoin(words, " ", absl::PairFormatter("="));
}

bool ChangesAverager(const v1::Plan& from, const v1::Plan& to) {
  const std::string before = PlannedSpec(from);
  const std::string after = PlannedSpec(to);
  return before != after && (Averages(before) || Averages(after));
}

absl::Status CheckChangeWithinGeneration(const v1::Plan& from,
                                         const v1::Plan& to) {
  const std::string before = PlannedSpec(from);
  const std::string after = PlannedSpec(to);
  if (before == after) return absl::OkStatus();
  if (Averages(before) && !Averages(after)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "with the hook ", before,
        " each rank's optimizer has a state of its own, which no change of "
        "plans brings together: with ",
        after, " the ranks would drift apart; say at=generation"));
  }
  if (AllTerms(to)["hook_state"] != "carry") return absl::OkStatus();
  const absl::Status carried = CarryState(before, after);
  if (carried.ok()) return carried;
  return absl::InvalidArgumentError(absl::StrCat(
      "the hook ", after, " cannot go on from the state of ", before, " (",
      carried.message(),
      "); say hook_state=reset to begin without it, or at=generation"));
}

std::map<std::string, std::string> AllTerms(const v1::Plan& plan) {
  std::map<std::string, std::string> terms = ScheduleTerms().ToMap();
  for (const auto& [name, value] : plan.terms()) terms[name] = value;
  return terms;
}

std::vector<std::string> ChangedTerms(const v1::Plan& plan) {
  const std::map<std::string, std::string> defaults = ScheduleTerms().ToMap();
  std::vector<std::string> changed;
  for (const auto& [name, value] : AllTerms(plan)) {
    const auto found = defaults.find(name);
    if (found != defaults.end() && found->second == value) continue;
    changed.push_back(absl::StrCat(name, "=", value));
  }
  return changed;
}

std::vector<std::string> Differences(const v1::Plan& from, const v1::Plan& to) {
  std::vector<std::string> differences;
  const auto compare = [&](const std::string& name, const std::string& before,
                           const std::string& after) {
    if (before == after) return;
    differences.push_back(absl::StrCat(name, " ", before, " -> ", after));
  };
  compare("accumulation", absl::StrCat(from.accumulation_steps()),
          absl::StrCat(to.accumulation_steps()));
  compare("hook", from.hook(), to.hook());
  compare("compression_start", CompressionStartText(from),
          CompressionStartText(to));
  const auto before = AllTerms(from);
  for (const auto& [name, value] : AllTerms(to)) {
    const auto found = before.find(name);
    compare(name, found == before.end() ? "unknown" : found->second, value);
  }
  return differences;
}

std::string CompressionStartText(const v1::Plan& plan) {
  return plan.compression_start_step() < 0
             ? "the hook's own"
             : absl::StrCat(plan.compression_start_step());
}

std::string BeginningText(int64_t at_step) {
  if (at_step == kWithNextGeneration) return "the next generation";
  if (at_step == kAtNextStep) return "the next step";
  return absl::StrCat("step ", at_step);
}

}  // namespace coxswain
