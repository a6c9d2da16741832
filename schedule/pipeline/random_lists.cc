#include "schedule/pipeline/random_lists.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "schedule/pipeline/generate.h"

namespace coxswain::pipeline {
namespace {

// Returns a valid schedule of a random kind and size.
Lists ValidLists(Dice& dice) {
  using Kind = ScheduleSpec::Kind;
  const ScheduleSpec specs[] = {
      {Kind::kGpipe, 1, false},       {Kind::kGpipe, 1, true},
      {Kind::k1f1b, 1, false},        {Kind::kInterleaved, 2, false},
      {Kind::kInterleaved, 3, false}, {Kind::kZbH1, 1, false}};
  const ScheduleSpec& spec = specs[dice.Below(6)];
  const auto compute = Generate(spec, 2 + dice.Below(4), 1 + dice.Below(5));
  Lists lists = WithTransfers(*compute)->of_rank();
  const bool waits = dice.Below(4) == 0;
  const bool reduces = dice.Below(4) == 0;
  for (Schedule::Actions& list : lists) {
    for (size_t at = 0; waits && at < list.size(); ++at) {
      if (!IsSend(list[at].kind)) continue;
      Action wait = list[at];
      wait.kind = wait.kind == ActionKind::kSendForward
                      ? ActionKind::kWaitSendForward
                      : ActionKind::kWaitSendBackward;
      const size_t later = at + 1 + dice.Below(list.size() - at);
      list.insert(list.begin() + later, wait);
    }
    if (reduces) {
      list.push_back({list.front().stage, -1, ActionKind::kReduceGradient});
    }
  }
  return lists;
}

// Swaps neighbours mostly, such that do not need each other, and moves, drops,
// repeats or changes an action.
void Mutate(Dice& dice, Lists& lists) {
  Schedule::Actions& list = lists[dice.Below(lists.size())];
  const int at = dice.Below(list.size());
  switch (dice.Below(30)) {
    default: {
      Action& before = list[std::max(at - 1, 0)];
      if (before.micro_batch != list[at].micro_batch) {
        std::swap(before, list[at]);
      }
      break;
    }
    case 0: {
      const Action moved = list[at];
      list.erase(list.begin() + at);
      list.insert(list.begin() + dice.Below(list.size() + 1), moved);
      break;
    }
    case 1:
      if (list.size() > 1) list.erase(list.begin() + at);
      break;
    case 2:
      list.insert(list.begin() + dice.Below(list.size() + 1), list[at]);
      break;
    case 3: {
      Schedule::Actions& other = lists[dice.Below(lists.size())];
      other.insert(other.begin() + dice.Below(other.size() + 1), list[at]);
      break;
    }
    case 4:
      if (IsOfMicroBatch(list[at].kind)) {
        list[at].micro_batch = (list[at].micro_batch + 1) % 3;
      }
      break;
  }
}

}  // namespace

Lists RandomLists(Dice& dice) {
  Lists lists = ValidLists(dice);
  for (int changes = dice.Below(5); changes > 0; --changes) {
    Mutate(dice, lists);
  }
  return lists;
}

std::string TextOf(const Lists& lists) {
  std::string text;
  for (const Schedule::Actions& list : lists) {
    for (const Action& action : list) {
      absl::StrAppend(&text, ToString(action), ",");
    }
    text += "\n";
  }
  return text;
}

}  // namespace coxswain::pipeline
