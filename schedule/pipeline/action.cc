#include "schedule/pipeline/action.h"

#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace coxswain::pipeline {
namespace {

// By ActionKind.
constexpr absl::string_view kWords[] = {"F",           "B",
                                        "I",           "W",
                                        "SEND_F",      "RECV_F",
                                        "SEND_B",      "RECV_B",
                                        "WAIT_SEND_F", "WAIT_SEND_B",
                                        "UNSHARD",     "RESHARD",
                                        "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};
constexpr absl::string_view kOverlap = ")OVERLAP_F_B";
constexpr size_t kMaxShown = 64;  // bytes of a text that an error repeats

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text.substr(0, kMaxShown),
                   text.size() > kMaxShown ? "..." : "", "' ", why));
}

// Takes the digits that `text` begins with.
absl::string_view TakeDigits(absl::string_view* text) {
  size_t end = 0;
  while (end < text->size() && absl::ascii_isdigit((*text)[end])) ++end;
  const absl::string_view digits = text->substr(0, end);
  text->remove_prefix(end);
  return digits;
}

absl::StatusOr<Action> ParseOne(absl::string_view text) {
  absl::string_view rest = text;
  const absl::string_view stage = TakeDigits(&rest);
  size_t end = 0;
  while (end < rest.size() &&
         (absl::ascii_isupper(rest[end]) || rest[end] == '_')) {
    ++end;
  }
  const absl::string_view word = rest.substr(0, end);
  rest.remove_prefix(end);
  const absl::string_view micro_batch = TakeDigits(&rest);
  size_t kind = 0;
  while (kind < std::size(kWords) && kWords[kind] != word) ++kind;
  if (stage.empty() || kind == std::size(kWords) || !rest.empty()) {
    return Refuse(text,
                  "is no action: one is a stage, a word of torch's and a "
                  "micro-batch, as in 2F0 or 1SEND_B3");
  }
  Action action;
  action.kind = static_cast<ActionKind>(kind);
  if (!absl::SimpleAtoi(stage, &action.stage) || action.stage >= kMaxStages) {
    return Refuse(text, absl::StrCat("has a stage beyond ", kMaxStages - 1));
  }
  if (IsOfMicroBatch(action.kind) == micro_batch.empty()) {
    return Refuse(text, micro_batch.empty()
                            ? "has no micro-batch"
                            : "has a micro-batch, and is for all of them");
  }
  if (micro_batch.empty()) return action;
  if (!absl::SimpleAtoi(micro_batch, &action.micro_batch) ||
      action.micro_batch >= kMaxMicroBatches) {
    return Refuse(
        text, absl::StrCat("has a micro-batch beyond ", kMaxMicroBatches - 1));
  }
  return action;
}

}  // namespace

bool IsCompute(ActionKind kind) { return kind <= ActionKind::kBackwardWeight; }
bool IsSend(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}
bool IsReceive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward ||
         kind == ActionKind::kReceiveBackward;
}
bool IsWaitForSend(ActionKind kind) {
  return kind == ActionKind::kWaitSendForward ||
         kind == ActionKind::kWaitSendBackward;
}
bool IsTransfer(ActionKind kind) {
  return kind >= ActionKind::kSendForward &&
         kind <= ActionKind::kWaitSendBackward;
}
bool IsOfMicroBatch(ActionKind kind) { return kind < ActionKind::kUnshard; }

int ChannelOf(const Action& transfer) {
  switch (transfer.kind) {
    case ActionKind::kReceiveForward:
      return 2 * (transfer.stage - 1);
    case ActionKind::kReceiveBackward:
      return 2 * (transfer.stage + 1) + 1;
    case ActionKind::kSendBackward:
    case ActionKind::kWaitSendBackward:
      return 2 * transfer.stage + 1;
    default:
      return 2 * transfer.stage;
  }
}

std::string ToString(const Action& action) {
  const absl::string_view word = kWords[static_cast<size_t>(action.kind)];
  return action.micro_batch < 0
             ? absl::StrCat(action.stage, word)
             : absl::StrCat(action.stage, word, action.micro_batch);
}

absl::StatusOr<std::vector<Action>> ParseActions(absl::string_view text) {
  absl::string_view inner = text;
  if (!absl::ConsumePrefix(&inner, "(")) {
    COXSWAIN_ASSIGN_OR_RETURN(const Action action, ParseOne(text));
    return std::vector<Action>{action};
  }
  if (!absl::ConsumeSuffix(&inner, kOverlap)) {
    return Refuse(text,
                  "is no overlap: one is several actions, as in "
                  "(0F3;3B1)OVERLAP_F_B");
  }
  std::vector<Action> actions;
  for (const absl::string_view part : absl::StrSplit(inner, ';')) {
    COXSWAIN_ASSIGN_OR_RETURN(const Action action,
                              ParseOne(absl::StripAsciiWhitespace(part)));
    if (!IsCompute(action.kind)) {
      return Refuse(text, absl::StrCat("overlaps ", ToString(action),
                                       ", which is none of F, B, I and W"));
    }
    actions.push_back(action);
  }
  if (actions.size() < 2 || actions.size() > kMaxShown) {
    return Refuse(text, absl::StrCat("overlaps ", actions.size(),
                                     " actions; 2 to ", kMaxShown, " can"));
  }
  actions.front().overlap = static_cast<uint16_t>(actions.size());
  return actions;
}

}  // namespace coxswain::pipeline
