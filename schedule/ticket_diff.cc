#include "schedule/ticket_diff.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/peer_text.h"
#include "schedule/schedule_errors.h"

namespace coxswain::schedule {
namespace {

constexpr size_t kMaxGroups = 6;      // values that one line names
constexpr size_t kMaxValue = 120;     // bytes of one of them
constexpr size_t kKeptOfPrefix = 20;  // of what all values begin with

struct Case {
  const TicketRules& rules;
  int rank;
  const Ticket& ticket;

  // Returns how many micro-batches the plan lets this rank sum up in one
  // exchange.
  int Planned() const {
    if (rules.plan->terms.sync_each_batch) return 1;
    return rules.plan->WindowOf(rank, rules.world_size);
  }
  bool CutShort() const {
    return ticket.end_of_data && ticket.micro_batches < Planned();
  }
};

bool EqualWindows(const TicketRules& rules) {
  const Plan& plan = *rules.plan;
  return plan.WindowOf(0, rules.world_size) ==
         plan.WindowOf(rules.world_size - 1, rules.world_size);
}

bool Always(const TicketRules&) { return true; }
bool SyncsEachBatch(const TicketRules& rules) {
  return rules.plan->terms.sync_each_batch;
}
bool RefusesUneven(const TicketRules& rules) {
  return rules.plan->terms.uneven_data == UnevenData::kRefuse;
}
bool CountedByProgram(const TicketRules& rules) {
  return rules.plan->terms.windows == Windows::kProgram;
}
bool CountsAlike(const TicketRules& rules) {
  return RefusesUneven(rules) && EqualWindows(rules);
}

std::string Hex(uint64_t number) { return absl::StrFormat("%016x", number); }

// A field that all ranks have in common, where its rule applies. The order is
// from causes to consequences: the first that differs gives the advice.
struct Field {
  absl::string_view name;
  bool (*applies)(const TicketRules& rules);
  bool (*same)(const Case& a, const Case& b);
  std::string (*text)(const Case& a);
  const char* advice;
};

constexpr char kPlanVersion[] = "plan_version";
constexpr char kHook[] = "hook";
constexpr char kStep[] = "step";
constexpr char kMicroBatches[] = "micro_batches";
constexpr char kChecksum[] = "checksum of the parameters";
constexpr char kDigest[] = "digest of the exchanges before";

const Field kFields[] = {
    {kPlanVersion, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.plan_version == b.ticket.plan_version;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.plan_version); },
     "a rank that has not taken over a change of the plan"},
    {kHook, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.hook == b.ticket.hook;
     },
     [](const Case& a) { return a.ticket.hook; },
     "hook options that depend on the rank"},
    {"layout of the buckets", Always,
     [](const Case& a, const Case& b) {
       return a.ticket.layout == b.ticket.layout;
     },
     [](const Case& a) { return Hex(a.ticket.layout); },
     "models, parameter orders or bucket caps that differ"},
    {kStep, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.step == b.ticket.step;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.step); },
     "a condition around the backward pass or the optimizer step that not all "
     "ranks take"},
    {"micro", SyncsEachBatch,
     [](const Case& a, const Case& b) {
       return a.ticket.micro == b.ticket.micro;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.micro); },
     "a micro-batch that not all ranks run"},
    {"window", SyncsEachBatch,
     [](const Case& a, const Case& b) {
       return a.ticket.window == b.ticket.window;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.window); },
     "another accumulation setting, or data of another length"},
    {"data at its end", RefusesUneven,
     [](const Case& a, const Case& b) { return a.CutShort() == b.CutShort(); },
     [](const Case& a) { return std::string(a.CutShort() ? "yes" : "no"); },
     "data of different lengths; uneven_data=wait_for_all or end_at_first "
     "allows it"},
    {kMicroBatches, CountsAlike,
     [](const Case& a, const Case& b) {
       return a.ticket.micro_batches == b.ticket.micro_batches;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.micro_batches); },
     "another accumulation setting, or a loop that counts its micro-batches "
     "differently"},
    {kChecksum, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.checksum == b.ticket.checksum;
     },
     [](const Case& a) {
       return a.ticket.checksum.has_value() ? Hex(*a.ticket.checksum)
                                            : std::string("none");
     },
     "an update that not all ranks make, another random seed, or a faulty "
     "machine: their parameters are not the same any more"},
    {kDigest, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.digest == b.ticket.digest;
     },
     [](const Case& a) { return Hex(a.ticket.digest); },
     "an exchange that was not the same on all ranks: other parameters were "
     "used, or other gradients came out"},
};

bool FitsCount(const Case& item) {
  const Ticket& ticket = item.ticket;
  if (ticket.micro_batches == item.Planned()) return true;
  if (ticket.micro_batches < 0) return false;
  if (CountedByProgram(item.rules)) return ticket.micro_batches > 0;
  if (ticket.micro_batches == 0 && !RefusesUneven(item.rules)) return true;
  if (item.rules.carried_windows && ticket.micro_batches == ticket.window) {
    return true;
  }
  return item.CutShort();
}

bool FitsWeight(const Case& item) {
  const double weight = item.ticket.weight;
  if (!std::isfinite(weight) || weight < 0) return false;
  return item.ticket.micro_batches > 0 || weight == 0;
}

// The ranks of each value.
struct Group {
  std::string value;
  std::vector<int> ranks;
};

std::vector<Group> GroupBy(const std::vector<Case>& cases,
                           std::string (*text)(const Case&)) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (const Case& item : cases) ranks_of[text(item)].push_back(item.rank);
  std::vector<Group> groups;
  for (auto& [value, ranks] : ranks_of) {
    groups.push_back({value, std::move(ranks)});
  }
  // The outliers first, which are few.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) {
                     return a.ranks.size() < b.ranks.size();
                   });
  return groups;
}

// Values are distinguished by where they differ, not by how they begin.
size_t CommonPrefix(const std::vector<Group>& groups) {
  size_t common = groups[0].value.size();
  for (const Group& group : groups) {
    const size_t limit = std::min(common, group.value.size());
    common = 0;
    while (common < limit && group.value[common] == groups[0].value[common]) {
      ++common;
    }
  }
  return common;
}

std::string ShownValue(const std::string& value, size_t common) {
  if (value.size() <= kMaxValue || common <= kKeptOfPrefix) {
    return OneLine(Shorten(value, kMaxValue));
  }
  const size_t begin = LetterStart(value, common - kKeptOfPrefix);
  return OneLine(absl::StrCat(
      "...", Shorten(absl::string_view(value).substr(begin), kMaxValue)));
}

std::string Line(absl::string_view name, const std::vector<Group>& groups) {
  std::string line = absl::StrCat(name, ": ");
  const size_t common = CommonPrefix(groups);
  for (size_t i = 0; i < std::min(groups.size(), kMaxGroups); ++i) {
    absl::StrAppend(&line, i == 0 ? "" : ", ",
                    ShownValue(groups[i].value, common), " on ",
                    RankList(groups[i].ranks));
  }
  if (groups.size() > kMaxGroups) {
    absl::StrAppend(&line, ", and ", groups.size() - kMaxGroups,
                    " other values");
  }
  return line;
}

// Collects what is found, in the order in which it is found.
class Differences {
 public:
  Differences(const TicketRules& rules, const std::vector<RankTicket>& tickets)
      : rules_(rules) {
    for (const RankTicket& item : tickets) {
      cases_.push_back(Case{rules, item.rank, *item.ticket});
    }
  }

  TicketDiff Find() {
    for (const Field& field : kFields) {
      if (field.applies(rules_) || field.name == kMicroBatches) Check(field);
    }
    CheckWeights();
    TicketDiff diff;
    diff.outliers.assign(outliers_.begin(), outliers_.end());
    if (!lines_.empty()) diff.opening = "ranks differ: ";
    diff.lines = std::move(lines_);
    diff.advice = std::move(advice_);
    diff.step = Step();
    return diff;
  }

 private:
  void Check(const Field& field) {
    std::set<int> outliers;
    const std::vector<Group> groups = GroupBy(cases_, field.text);
    // They follow from that.
    if (step_differs_ && (field.name == kChecksum || field.name == kDigest)) {
      return;
    }
    if (field.name == kMicroBatches) outliers = Misfits(FitsCount);
    if (outliers.empty() && field.applies(rules_))
      outliers = OutliersOf(field, groups);
    if (outliers.empty()) return;
    lines_.push_back(
        absl::StrCat(Line(field.name, groups),
                     field.name == kMicroBatches ? PlanText() : ""));
    if (field.name == kStep) ExplainSteps(outliers);
    Note(outliers, field.advice);
  }

  std::set<int> Misfits(bool (*fits)(const Case&)) const {
    std::set<int> outliers;
    for (const Case& item : cases_) {
      if (!fits(item)) outliers.insert(item.rank);
    }
    return outliers;
  }

  std::set<int> OutliersOf(const Field& field,
                           const std::vector<Group>& groups) const {
    std::set<int> outliers;
    if (groups.size() < 2) return outliers;
    const std::optional<std::string> right = RightValue(field, groups);
    for (const Group& group : groups) {
      if (group.value == right) continue;
      outliers.insert(group.ranks.begin(), group.ranks.end());
    }
    return outliers;
  }

  // The majority's; else those that are right by the plan or the next step, if
  // there are any.
  std::optional<std::string> RightValue(
      const Field& field, const std::vector<Group>& groups) const {
    // Of all ranks: a majority of those received so far may be the outliers.
    if (groups.back().ranks.size() * 2 >
        static_cast<size_t>(rules_.world_size)) {
      return groups.back().value;
    }
    const Plan& plan = *rules_.plan;
    std::vector<std::string> known;
    if (field.name == kStep && rules_.next_step.has_value()) {
      known.push_back(absl::StrCat(*rules_.next_step));
    }
    if (field.name == kPlanVersion) {
      known.push_back(absl::StrCat(plan.version));
    }
    if (field.name == kHook) known.push_back(plan.hook);
    for (const std::string& value : known) {
      for (const Group& group : groups) {
        if (group.value == value) return value;
      }
    }
    return std::nullopt;
  }

  void ExplainSteps(const std::set<int>& outliers) {
    step_differs_ = true;
    int64_t base = cases_[0].ticket.step;
    for (const Case& item : cases_) base = std::min(base, item.ticket.step);
    for (const Case& item : cases_) {
      if (outliers.count(item.rank) == 0) base = item.ticket.step;
    }
    std::vector<int> ahead;
    std::vector<int> behind;
    for (const Case& item : cases_) {
      if (item.ticket.step > base) ahead.push_back(item.rank);
      if (item.ticket.step < base) behind.push_back(item.rank);
    }
    if (!ahead.empty()) {
      lines_.push_back(absl::StrCat(RankList(ahead),
                                    " skipped an exchange that the others "
                                    "made"));
    }
    if (!behind.empty()) {
      lines_.push_back(absl::StrCat(RankList(behind),
                                    " made an exchange that the others did "
                                    "not"));
    }
  }

  std::string PlanText() const {
    const Plan& plan = *rules_.plan;
    if (CountedByProgram(rules_)) return "";
    if (plan.terms.sync_each_batch) return " (1 in each exchange by the plan)";
    const int first = plan.WindowOf(0, rules_.world_size);
    const int last = plan.WindowOf(rules_.world_size - 1, rules_.world_size);
    if (first == last) return absl::StrCat(" (", first, " by the plan)");
    return absl::StrCat(" (", last, " or ", first,
                        " by the plan, the more on the first ranks)");
  }

  void CheckWeights() {
    const std::set<int> outliers = Misfits(FitsWeight);
    if (outliers.empty()) return;
    lines_.push_back(Line("weight", GroupBy(cases_, [](const Case& item) {
                            return absl::StrCat(item.ticket.weight);
                          })));
    Note(outliers, "weights that are not finite, negative, or without data");
  }

  void Note(const std::set<int>& outliers, const char* advice) {
    outliers_.insert(outliers.begin(), outliers.end());
    if (advice_.empty()) advice_ = advice;
  }

  int64_t Step() const {
    for (const Case& item : cases_) {
      if (outliers_.count(item.rank) == 0) return item.ticket.step;
    }
    int64_t step = cases_.empty() ? 0 : cases_[0].ticket.step;
    for (const Case& item : cases_) step = std::min(step, item.ticket.step);
    return step;
  }

  const TicketRules& rules_;
  std::vector<Case> cases_;
  std::set<int> outliers_;
  std::vector<std::string> lines_;
  std::string advice_;
  bool step_differs_ = false;
};

bool SameWeight(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

bool SameSums(const std::optional<GradientSums>& a,
              const std::optional<GradientSums>& b) {
  if (!a || !b) return !a && !b;
  return SameWeight(a->sum_of_squares, b->sum_of_squares) &&
         a->non_finite == b->non_finite;
}

}  // namespace

bool TicketFits(const TicketRules& rules, const RankTicket& ticket) {
  const Case item{rules, ticket.rank, *ticket.ticket};
  return FitsCount(item) && FitsWeight(item);
}

bool TicketsAgree(const TicketRules& rules, const RankTicket& a,
                  const RankTicket& b) {
  const Case left{rules, a.rank, *a.ticket};
  const Case right{rules, b.rank, *b.ticket};
  for (const Field& field : kFields) {
    if (field.applies(rules) && !field.same(left, right)) return false;
  }
  return true;
}

bool SameTicket(const Ticket& a, const Ticket& b) {
  return a.round == b.round && a.step == b.step && a.micro == b.micro &&
         a.micro_batches == b.micro_batches && a.window == b.window &&
         SameWeight(a.weight, b.weight) && a.end_of_data == b.end_of_data &&
         a.plan_version == b.plan_version && a.hook == b.hook &&
         a.layout == b.layout && a.digest == b.digest &&
         a.pipeline == b.pipeline && a.checksum == b.checksum &&
         a.skip == b.skip;
}

bool SameVote(const Vote& a, const Vote& b) {
  return a.round == b.round && a.commit == b.commit && a.reason == b.reason &&
         SameSums(a.sums, b.sums);
}

TicketDiff DiffTickets(const TicketRules& rules,
                       const std::vector<RankTicket>& tickets) {
  return Differences(rules, tickets).Find();
}

}  // namespace coxswain::schedule
