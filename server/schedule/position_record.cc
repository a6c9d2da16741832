#include "server/schedule/position_record.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "schedule/bounds.h"
#include "server/plan/plan_record.h"

namespace coxswain::server {
namespace {

using Lines = std::map<std::string, std::string>;

constexpr char kRound[] = "round";
constexpr char kStep[] = "step";
constexpr char kNextStep[] = "next_step";  // left out: not known
constexpr char kCommit[] = "commit";
constexpr char kReason[] = "reason";
constexpr char kStop[] = "stop";
constexpr char kRegroup[] = "regroup";
constexpr char kCheckpoint[] = "checkpoint";  // left out: none
constexpr char kPlan[] = "plan";              // left out: none

template <typename Value>
void AddLine(absl::string_view name, const Value& value, std::string* record) {
  absl::StrAppend(record, name, " ", value, "\n");
}

absl::StatusOr<Lines> SplitLines(absl::string_view record) {
  Lines lines;
  while (!record.empty()) {
    const size_t space = record.find(' ');
    const size_t end = record.find('\n');
    if (space == record.npos || end == record.npos || space > end) {
      return absl::InvalidArgumentError("a line without a name or an end");
    }
    lines[std::string(record.substr(0, space))] =
        std::string(record.substr(space + 1, end - space - 1));
    record.remove_prefix(end + 1);
  }
  return lines;
}

absl::Status ReadNumber(const Lines& lines, const char* name, int64_t* value) {
  const auto found = lines.find(name);
  if (found != lines.end() && absl::SimpleAtoi(found->second, value)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("no number '", name, "'"));
}

absl::Status ReadText(const Lines& lines, const char* name, std::string* text) {
  const auto found = lines.find(name);
  if (found != lines.end() && absl::CUnescape(found->second, text)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("no text '", name, "'"));
}

}  // namespace

std::string EncodePosition(const schedule::Decision& decision) {
  std::string record;
  AddLine(kRound, decision.round, &record);
  AddLine(kStep, decision.step, &record);
  if (decision.next_step.has_value()) {
    AddLine(kNextStep, *decision.next_step, &record);
  }
  AddLine(kCommit, decision.commit ? 1 : 0, &record);
  AddLine(kReason, absl::CEscape(decision.reason), &record);
  AddLine(kStop, absl::CEscape(decision.stop), &record);
  AddLine(kRegroup, absl::CEscape(decision.regroup), &record);
  if (!decision.checkpoint.empty()) {
    AddLine(kCheckpoint, absl::CEscape(decision.checkpoint), &record);
  }
  if (decision.plan.has_value()) {
    AddLine(kPlan, absl::CEscape(EncodePlan(*decision.plan)), &record);
  }
  return record;
}

absl::StatusOr<schedule::Decision> DecodePosition(absl::string_view record) {
  COXSWAIN_ASSIGN_OR_RETURN(const Lines lines, SplitLines(record));
  schedule::Decision decision;
  COXSWAIN_RETURN_IF_ERROR(ReadNumber(lines, kRound, &decision.round));
  COXSWAIN_RETURN_IF_ERROR(ReadNumber(lines, kStep, &decision.step));
  if (lines.count(kNextStep) != 0) {
    COXSWAIN_RETURN_IF_ERROR(
        ReadNumber(lines, kNextStep, &decision.next_step.emplace()));
  }
  int64_t commit = 0;
  COXSWAIN_RETURN_IF_ERROR(ReadNumber(lines, kCommit, &commit));
  decision.commit = commit != 0;
  COXSWAIN_RETURN_IF_ERROR(ReadText(lines, kReason, &decision.reason));
  COXSWAIN_RETURN_IF_ERROR(ReadText(lines, kStop, &decision.stop));
  COXSWAIN_RETURN_IF_ERROR(ReadText(lines, kRegroup, &decision.regroup));
  if (lines.count(kCheckpoint) != 0) {
    COXSWAIN_RETURN_IF_ERROR(
        ReadText(lines, kCheckpoint, &decision.checkpoint));
  }
  // Records of earlier versions may have more.
  for (std::string* text : {&decision.reason, &decision.stop, &decision.regroup,
                            &decision.checkpoint}) {
    *text = Shorten(*text, schedule::kMaxDecisionTextBytes);
  }
  if (lines.count(kPlan) != 0) {
    std::string plan;
    COXSWAIN_RETURN_IF_ERROR(ReadText(lines, kPlan, &plan));
    COXSWAIN_ASSIGN_OR_RETURN(decision.plan, DecodePlan(plan));
  }
  COXSWAIN_RETURN_IF_ERROR(schedule::CheckPosition(decision));
  return decision;
}

}  // namespace coxswain::server
