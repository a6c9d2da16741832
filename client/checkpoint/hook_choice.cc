#include "client/checkpoint/hook_choice.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/checkpoint/hook_cut.h"

namespace coxswain {
namespace {

constexpr char kHookParametersBlob[] = ".hook_parameters/";
constexpr int kNothing = -1;

// Returns the parameters of the whole model of which a merged state has errors:
// they are in their shapes.
std::vector<HookParameter> ParametersOf(const HookState& merged) {
  std::vector<ParameterSpec> specs;
  std::set<std::string> seen;
  for (const StateTensor& tensor : merged.tensors) {
    if (!IsErrorKind(tensor.kind, merged)) continue;
    if (!seen.insert(tensor.parameter).second) continue;
    ParameterSpec spec;
    spec.name = tensor.parameter;
    spec.shape = tensor.shape;
    spec.dtype = tensor.dtype;
    specs.push_back(std::move(spec));
  }
  return HookParametersOf(specs, {});
}

// Returns whether a hook of another part refuses a state for the parameters
// that it names alone, as there is nothing else in it: before a low-rank hook
// begins to compress.
bool IsOfNamesOnly(const HookState& hook) {
  return hook.tensors.empty() && hook.options.count(kHookParametersOption) > 0;
}

}  // namespace

std::string HookParametersBlob(int rank) {
  return absl::StrCat(kHookParametersBlob, rank);
}

HookChoice::HookChoice(const TrainingRank& reader,
                       std::vector<std::string> parts, bool own)
    : reader_(reader), parts_(std::move(parts)), own_(own) {
  for (size_t number = 0; number < parts_.size(); ++number) {
    if (parts_[number] != reader_.part) continue;
    const int index = static_cast<int>(alike_.size());
    alike_[static_cast<int>(number)] = index;
  }
}

bool HookChoice::Needs(int number) const {
  if (!own_ || number == 0) return true;
  const auto alike = alike_.find(number);
  if (alike != alike_.end()) {
    return !one_to_one() || alike->second == reader_.rank;
  }
  if (of_part() || reader_.parameters.empty()) return false;
  const auto known = known_.find(parts_[static_cast<size_t>(number)]);
  return known == known_.end() || known->second != kNothing;
}

absl::Status HookChoice::Take(int number, HookState hook,
                              absl::string_view described) {
  if (!own_) {
    hooks_.push_back(std::move(hook));
    return absl::OkStatus();
  }
  const auto alike = alike_.find(number);
  if (alike != alike_.end()) {
    hooks_.resize(alike_.size());
    hooks_[static_cast<size_t>(alike->second)] = std::move(hook);
    return absl::OkStatus();
  }
  if (of_part()) return absl::OkStatus();
  return TakeForCut(number, std::move(hook), described);
}

absl::Status HookChoice::TakeForCut(int number, HookState hook,
                                    absl::string_view described) {
  if (number == 0) {
    first_.spec = hook.spec;
    first_.step = hook.step;
    first_.options = hook.options;
  }
  int& place = known_.emplace(parts_[static_cast<size_t>(number)], kNothing)
                   .first->second;
  if (place == kNothing) {
    COXSWAIN_ASSIGN_OR_RETURN(std::vector<HookParameter> parameters,
                              ParseHookParameters(described));
    if (Overlap(parameters, reader_.parameters)) {
      place = static_cast<int>(saved_.size());
      saved_.push_back({std::move(parameters), {}, /*own=*/true});
    }
  }
  if (place != kNothing) {
    saved_[static_cast<size_t>(place)].states.push_back(std::move(hook));
  } else if (number == 0) {
    first_ = std::move(hook);
  }
  return absl::OkStatus();
}

absl::Status HookChoice::Finish(TrainingState* state) {
  state->parts = std::move(saved_);
  if (own_) {
    state->hook = std::move(first_);
    state->own = std::move(hooks_);
    if (!of_part()) CutNamesOnly(state);
    return absl::OkStatus();
  }
  COXSWAIN_ASSIGN_OR_RETURN(state->hook, MergeHookStates(std::move(hooks_)));
  if (of_part() || reader_.parameters.empty()) return absl::OkStatus();
  CutNamesOnly(state);
  std::vector<HookParameter> whole = ParametersOf(state->hook);
  if (!Overlap(whole, reader_.parameters)) return absl::OkStatus();
  SavedHookPart part{std::move(whole), {}, /*own=*/false};
  part.states.push_back(std::move(state->hook));
  state->hook.spec = part.states[0].spec;
  state->hook.step = part.states[0].step;
  state->hook.options = part.states[0].options;
  state->hook.tensors.clear();
  state->parts.push_back(std::move(part));
  return absl::OkStatus();
}

void HookChoice::CutNamesOnly(TrainingState* state) const {
  if (reader_.parameters.empty() || !state->parts.empty() ||
      !IsOfNamesOnly(state->hook)) {
    return;
  }
  state->parts.push_back({{}, {state->hook}, /*own=*/false});
}

}  // namespace coxswain
