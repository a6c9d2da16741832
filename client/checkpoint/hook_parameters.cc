#include "client/checkpoint/hook_parameters.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/element_names.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

constexpr char kAnyKind[] = "error";  // a piece has one

absl::Status Damaged(absl::string_view line) {
  return absl::DataLossError(
      absl::StrCat("'", line,
                   "' does not describe a parameter of a hook, as in 'float32 "
                   "[6,4] [0:3,0:4] name'"));
}

// Takes "[...] " off the front of `rest`, and returns what it lists.
std::optional<std::vector<absl::string_view>> TakeList(
    absl::string_view* rest) {
  const size_t end = rest->find("] ");
  if (!absl::ConsumePrefix(rest, "[") || end == absl::string_view::npos) {
    return std::nullopt;
  }
  const absl::string_view list = rest->substr(0, end - 1);
  rest->remove_prefix(end + 1);
  if (list.empty()) return std::vector<absl::string_view>();
  return absl::StrSplit(list, ',');
}

absl::StatusOr<HookParameter> ParseLine(absl::string_view line) {
  const size_t space = line.find(' ');
  if (space == absl::string_view::npos) return Damaged(line);
  const std::optional<DType> dtype = DTypeFromName(line.substr(0, space));
  absl::string_view rest = line.substr(space + 1);
  const auto shape = TakeList(&rest);
  if (!dtype || !shape) return Damaged(line);
  const auto ranges = TakeList(&rest);
  if (!ranges || ranges->size() != shape->size()) return Damaged(line);
  HookParameter parameter;
  parameter.spec.name = std::string(rest);
  parameter.spec.dtype = *dtype;
  for (size_t d = 0; d < shape->size(); ++d) {
    const std::vector<absl::string_view> bounds =
        absl::StrSplit((*ranges)[d], ':');
    int64_t extent = 0;
    int64_t begin = 0;
    int64_t end = 0;
    if (bounds.size() != 2 || !absl::SimpleAtoi((*shape)[d], &extent) ||
        !absl::SimpleAtoi(bounds[0], &begin) ||
        !absl::SimpleAtoi(bounds[1], &end)) {
      return Damaged(line);
    }
    parameter.box.shape.push_back(extent);
    parameter.box.box.begin.push_back(begin);
    parameter.box.box.end.push_back(end);
    parameter.spec.shape.push_back(end - begin);
  }
  const bool sound = CheckPiece(TensorPiece::Of(parameter.spec.name, kAnyKind,
                                                *dtype, parameter.box))
                         .ok();
  if (!sound) return Damaged(line);
  return parameter;
}

}  // namespace

std::vector<HookParameter> HookParametersOf(
    const std::vector<ParameterSpec>& parameters, const ParameterBoxes& boxes) {
  std::vector<HookParameter> result;
  for (const ParameterSpec& spec : parameters) {
    const auto divided = boxes.find(spec.name);
    result.push_back(
        {spec, divided == boxes.end()
                   ? ParameterBox{spec.shape, Box::Whole(spec.shape)}
                   : divided->second});
  }
  return result;
}

std::vector<ParameterSpec> SpecsOf(
    const std::vector<HookParameter>& parameters) {
  std::vector<ParameterSpec> specs;
  for (const HookParameter& one : parameters) specs.push_back(one.spec);
  return specs;
}

std::string SerializeHookParameters(
    const std::vector<HookParameter>& parameters) {
  std::string text;
  for (const HookParameter& one : parameters) {
    std::vector<std::string> ranges;
    for (size_t d = 0; d < one.box.shape.size(); ++d) {
      ranges.push_back(
          absl::StrCat(one.box.box.begin[d], ":", one.box.box.end[d]));
    }
    absl::StrAppend(&text, NameOf(one.spec.dtype), " [",
                    absl::StrJoin(one.box.shape, ","), "] [",
                    absl::StrJoin(ranges, ","), "] ", one.spec.name, "\n");
  }
  return text;
}

absl::StatusOr<std::vector<HookParameter>> ParseHookParameters(
    absl::string_view text) {
  std::vector<HookParameter> parameters;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    COXSWAIN_ASSIGN_OR_RETURN(HookParameter one, ParseLine(line));
    parameters.push_back(std::move(one));
  }
  return parameters;
}

}  // namespace coxswain
