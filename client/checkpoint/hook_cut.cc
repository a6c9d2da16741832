#include "client/checkpoint/hook_cut.h"

#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/element_names.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr char kError[] = "error";
constexpr char kErrors[] = "error/";
// Options of a state.
constexpr char kOwnKinds[] = "own_kinds";

using ByName = std::map<std::string, const HookParameter*>;

ByName NamesOf(const std::vector<HookParameter>& parameters) {
  ByName names;
  for (const HookParameter& one : parameters) names[one.spec.name] = &one;
  return names;
}

bool SameBox(const HookParameter& a, const HookParameter& b) {
  return a.box.shape == b.box.shape && a.box.box == b.box.box;
}

std::set<std::string> OwnKinds(const HookState& state) {
  const auto found = state.options.find(kOwnKinds);
  if (found == state.options.end()) return {};
  return absl::StrSplit(found->second, ',');
}

bool IsErrorOf(const std::string& kind,
               const std::set<std::string>& own_kinds) {
  return kind == kError || absl::StartsWith(kind, kErrors) ||
         own_kinds.count(kind) > 0;
}

absl::Status Apart(absl::string_view what, absl::string_view one,
                   absl::string_view other) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the states of a hook on two parts of a model do not belong together: ",
      what, " is '", one, "' in one and '", other, "' in another"));
}

absl::Status CheckTogether(const HookState& first, const HookState& other) {
  if (first.spec != other.spec) {
    return Apart("the hook", first.spec, other.spec);
  }
  if (first.step != other.step) {
    return Apart("the step", absl::StrCat(first.step),
                 absl::StrCat(other.step));
  }
  for (const auto& [name, value] : other.options) {
    const auto found = first.options.find(name);
    if (name == kHookParametersOption || name == kOwnKinds ||
        found == first.options.end() || found->second == value) {
      continue;
    }
    return Apart(name, found->second, value);
  }
  return absl::OkStatus();
}

// Puts a state together from those of parts.
class Cutter {
 public:
  Cutter(const std::vector<HookParameter>& to, HookCut* cut)
      : to_(NamesOf(to)), cut_(*cut) {}

  absl::Status Add(const PartState& part) {
    const ByName from = NamesOf(part.parameters);
    const std::set<std::string> own_kinds = OwnKinds(part.state);
    for (const auto& [name, one] : from) {
      const auto here = to_.find(name);
      if (here == to_.end() || !SameBox(*one, *here->second)) continue;
      unchanged_.insert(name);
    }
    for (const StateTensor& tensor : part.state.tensors) {
      const auto there = from.find(tensor.parameter);
      const auto here = to_.find(tensor.parameter);
      const HookParameter* const of =
          there == from.end() ? nullptr : there->second;
      if (tensor.parameter.empty()) {  // of no parameter: of all ranks alike
        if (own_kinds.count(tensor.kind) == 0) Keep(tensor);
      } else if (here == to_.end()) {
        continue;
      } else if (of != nullptr && tensor.shape == of->spec.shape &&
                 IsErrorOf(tensor.kind, own_kinds)) {
        COXSWAIN_RETURN_IF_ERROR(Copy(tensor, *of, *here->second));
      } else if (of != nullptr && SameBox(*of, *here->second)) {
        Keep(tensor);
      } else {
        dropped_.emplace(tensor.kind, tensor.parameter);
      }
    }
    return absl::OkStatus();
  }

  void Finish() {
    for (auto& [key, tensor] : tensors_) {
      cut_.state.tensors.push_back(std::move(tensor));
    }
    for (const auto& key : dropped_) {
      if (unchanged_.count(key.second) > 0) continue;
      cut_.dropped.push_back(absl::StrCat(key.first, " of ", key.second));
    }
  }

 private:
  using Key = std::pair<std::string, std::string>;  // kind, parameter

  void Keep(const StateTensor& tensor) {
    tensors_.insert_or_assign(Key(tensor.kind, tensor.parameter), tensor);
  }

  absl::Status Copy(const StateTensor& tensor, const HookParameter& from,
                    const HookParameter& to) {
    const TensorPiece have =
        TensorPiece::Of(tensor.parameter, tensor.kind, tensor.dtype, from.box);
    const TensorPiece want =
        TensorPiece::Of(tensor.parameter, tensor.kind, tensor.dtype, to.box);
    if (have.shape != want.shape) {
      return Apart(absl::StrCat("the whole shape of ", tensor.parameter),
                   absl::StrJoin(want.shape, ","),
                   absl::StrJoin(have.shape, ","));
    }
    const std::vector<PieceRun> runs = Intersect(have, want);
    if (runs.empty()) return absl::OkStatus();
    const Key key(tensor.kind, tensor.parameter);
    StateTensor& into = tensors_[key];
    if (into.parameter.empty()) {
      into.kind = tensor.kind;
      into.parameter = tensor.parameter;
      into.shape = to.spec.shape;
      into.dtype = tensor.dtype;
      into.data.assign(static_cast<size_t>(want.bytes()), '\0');
    }
    if (into.dtype != tensor.dtype) {
      return Apart(absl::StrCat("the type of the errors of ", tensor.parameter),
                   NameOf(into.dtype), NameOf(tensor.dtype));
    }
    const auto element = static_cast<int64_t>(SizeOf(tensor.dtype));
    for (const PieceRun& run : runs) {
      std::memcpy(into.data.data() + run.to * element,
                  tensor.data.data() + run.from * element,
                  static_cast<size_t>(run.count * element));
    }
    return absl::OkStatus();
  }

  const ByName to_;
  HookCut& cut_;
  std::map<Key, StateTensor> tensors_;
  std::set<Key> dropped_;
  std::set<std::string> unchanged_;  // of which some part had the same box
};

}  // namespace

bool IsErrorKind(const std::string& kind, const HookState& state) {
  return IsErrorOf(kind, OwnKinds(state));
}

bool Overlap(const std::vector<HookParameter>& a,
             const std::vector<HookParameter>& b) {
  const ByName names = NamesOf(a);
  for (const HookParameter& one : b) {
    const auto found = names.find(one.spec.name);
    if (found == names.end() || found->second->box.shape != one.box.shape) {
      continue;
    }
    const auto whole = [](const HookParameter& parameter) {
      return TensorPiece::Of(parameter.spec.name, kError, parameter.spec.dtype,
                             parameter.box);
    };
    if (!Intersect(whole(*found->second), whole(one)).empty()) return true;
  }
  return false;
}

absl::StatusOr<HookCut> CutHookState(const std::vector<PartState>& from,
                                     const std::vector<HookParameter>& to) {
  if (from.empty()) {
    return absl::FailedPreconditionError(
        "no rank that saved a hook's state had any of these parameters");
  }
  HookCut cut;
  cut.state.spec = from[0].state.spec;
  cut.state.step = from[0].state.step;
  cut.state.options = from[0].state.options;
  Cutter cutter(to, &cut);
  // What the first ones have is written, or kept, over that of the others.
  std::set<std::string> own_kinds;
  for (const PartState& part : from) {
    COXSWAIN_RETURN_IF_ERROR(CheckTogether(from[0].state, part.state));
    for (const std::string& kind : OwnKinds(part.state)) {
      own_kinds.insert(kind);
    }
  }
  for (auto part = from.rbegin(); part != from.rend(); ++part) {
    COXSWAIN_RETURN_IF_ERROR(cutter.Add(*part));
  }
  if (!own_kinds.empty()) {
    cut.state.options[kOwnKinds] = absl::StrJoin(own_kinds, ",");
  }
  cutter.Finish();
  return cut;
}

}  // namespace coxswain
