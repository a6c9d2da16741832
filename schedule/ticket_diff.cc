#include "schedule/ticket_diff.h"

#include <algorithm>
#include <cmath>
#include <iterator>
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
constexpr size_t kMaxClasses = 4;     // that differ within, in lines of a field
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
    return rules.plan->WindowOf(rules.classes->DataIndexOf(rank),
                                rules.classes->data_ranks());
  }
  bool CutShort() const {
    return ticket.end_of_data && ticket.micro_batches < Planned();
  }
};

// The longest, which the first rank has, and the shortest.
std::pair<int, int> Windows(const TicketRules& rules) {
  const int ranks = rules.classes->data_ranks();
  return {rules.plan->WindowOf(0, ranks),
          rules.plan->WindowOf(ranks - 1, ranks)};
}

bool EqualWindows(const TicketRules& rules) {
  const auto [longest, shortest] = Windows(rules);
  return longest == shortest;
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

bool SameWeight(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

std::string Hex(uint64_t number) { return absl::StrFormat("%016x", number); }

std::string ChecksumText(const std::optional<uint64_t>& checksum) {
  return checksum.has_value() ? Hex(*checksum) : std::string("none");
}

// A field that the ranks of a class have in common, where its rule applies. The
// order is from causes to consequences: the first that differs gives the
// advice.
struct Field {
  absl::string_view name;
  Scope scope;
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
constexpr char kReplicated[] = "checksum of the replicated parameters";
constexpr char kDigest[] = "digest of the exchanges before";
constexpr char kPipeline[] = "schedule of the pipeline";

const Field kFields[] = {
    {kPlanVersion, Scope::kAll, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.plan_version == b.ticket.plan_version;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.plan_version); },
     "a rank that has not taken over a change of the plan"},
    {kHook, Scope::kAll, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.hook == b.ticket.hook;
     },
     [](const Case& a) { return a.ticket.hook; },
     "hook options that depend on the rank"},
    {"layout of the buckets", Scope::kPart, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.layout == b.ticket.layout;
     },
     [](const Case& a) { return Hex(a.ticket.layout); },
     "models, parameter orders or bucket caps that differ"},
    {kStep, Scope::kAll, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.step == b.ticket.step;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.step); },
     "a condition around the backward pass or the optimizer step that not all "
     "ranks take"},
    {"micro", Scope::kAll, SyncsEachBatch,
     [](const Case& a, const Case& b) {
       return a.ticket.micro == b.ticket.micro;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.micro); },
     "a micro-batch that not all ranks run"},
    {"window", Scope::kAll, SyncsEachBatch,
     [](const Case& a, const Case& b) {
       return a.ticket.window == b.ticket.window;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.window); },
     "another accumulation setting, or data of another length"},
    {"data at its end", Scope::kAll, RefusesUneven,
     [](const Case& a, const Case& b) { return a.CutShort() == b.CutShort(); },
     [](const Case& a) { return std::string(a.CutShort() ? "yes" : "no"); },
     "data of different lengths; uneven_data=wait_for_all or end_at_first "
     "allows it"},
    {kMicroBatches, Scope::kAll, CountsAlike,
     [](const Case& a, const Case& b) {
       return a.ticket.micro_batches == b.ticket.micro_batches;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.micro_batches); },
     "another accumulation setting, or a loop that counts its micro-batches "
     "differently"},
    // Who computes the same micro-batches announces the same of them, whatever
    // the plan allows others.
    {kMicroBatches, Scope::kData, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.micro_batches == b.ticket.micro_batches;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.micro_batches); },
     "a rank whose loop counts micro-batches differently, or reads other data "
     "than the ranks that compute them with it"},
    {"end of the data", Scope::kData, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.end_of_data == b.ticket.end_of_data;
     },
     [](const Case& a) {
       return std::string(a.ticket.end_of_data ? "yes" : "no");
     },
     "ranks that compute the same micro-batches and read different data"},
    {"window", Scope::kData, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.window == b.ticket.window;
     },
     [](const Case& a) { return absl::StrCat(a.ticket.window); },
     "another accumulation setting, or data of another length"},
    {kPipeline, Scope::kData, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.pipeline == b.ticket.pipeline;
     },
     [](const Case& a) {
       return a.ticket.pipeline == 0 ? std::string("none")
                                     : Hex(a.ticket.pipeline);
     },
     "stages that run different schedules, made for another plan or by another "
     "version"},
    {"weight", Scope::kData, Always,
     [](const Case& a, const Case& b) {
       return SameWeight(a.ticket.weight, b.ticket.weight);
     },
     [](const Case& a) { return absl::StrFormat("%.17g", a.ticket.weight); },
     "a rank that weighs its micro-batches differently than those that compute "
     "them with it"},
    // Among more ranks than those that have all parameters in common, of which
    // most may be right.
    {kReplicated, Scope::kStage, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.replicated_checksum == b.ticket.replicated_checksum;
     },
     [](const Case& a) { return ChecksumText(a.ticket.replicated_checksum); },
     "an update that not all ranks along tp make, or a faulty machine: "
     "parameters that each of them has whole are not the same any more"},
    {kChecksum, Scope::kPart, Always,
     [](const Case& a, const Case& b) {
       return a.ticket.checksum == b.ticket.checksum;
     },
     [](const Case& a) { return ChecksumText(a.ticket.checksum); },
     "an update that not all ranks make, another random seed, or a faulty "
     "machine: their parameters are not the same any more"},
    {kDigest, Scope::kPart, Always,
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

std::string Line(absl::string_view name, const std::vector<Group>& groups,
                 const RankClasses& classes) {
  std::string line = absl::StrCat(name, ": ");
  const size_t common = CommonPrefix(groups);
  for (size_t i = 0; i < std::min(groups.size(), kMaxGroups); ++i) {
    absl::StrAppend(&line, i == 0 ? "" : ", ",
                    ShownValue(groups[i].value, common), " on ",
                    classes.List(groups[i].ranks));
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
      if (field.scope == Scope::kData && rules_.classes->divided()) {
        CheckWeights();
      }
      if (field.scope == Scope::kAll || !rules_.classes->divided()) {
        CheckAmongAll(field);
      } else if (field.applies(rules_)) {
        CheckInClasses(field);
      }
    }
    CheckWeights();
    TicketDiff diff;
    diff.outliers.assign(outliers_.begin(), outliers_.end());
    if (!lines_.empty()) diff.opening = "ranks differ: ";
    diff.lines = std::move(lines_);
    diff.advice = std::move(advice_);
    diff.placed.assign(placed_.begin(), placed_.end());
    diff.step = Step();
    return diff;
  }

 private:
  void CheckAmongAll(const Field& field) {
    // Each rank has its own data.
    if (field.scope == Scope::kData) return;
    // They follow from that.
    if (step_differs_ && (field.name == kChecksum || field.name == kDigest ||
                          field.name == kReplicated)) {
      return;
    }
    const bool counts = field.name == kMicroBatches;
    if (!counts && !field.applies(rules_)) return;
    const std::vector<Group> groups = GroupBy(cases_, field.text);
    std::set<int> outliers;
    if (counts) outliers = Misfits(FitsCount);
    if (outliers.empty() && field.applies(rules_)) {
      outliers = OutliersOf(field, groups, rules_.classes->world_size());
    }
    if (outliers.empty()) return;
    AddLine(field.name, groups, counts ? PlanText() : "");
    if (field.name == kStep) ExplainSteps(outliers);
    Note(outliers, field.advice);
  }

  // Leaves out ranks that differ from others anyway: what they announce else
  // follows from that.
  void CheckInClasses(const Field& field) {
    const RankClasses& classes = *rules_.classes;
    std::map<int, std::vector<Case>> cases_of;
    std::map<int, int> size_of;
    for (const Case& item : cases_) {
      const int number = classes.ClassOf(field.scope, item.rank);
      size_of.emplace(number, classes.SizeOf(field.scope));
      if (outliers_.count(item.rank) > 0) {
        --size_of[number];
      } else {
        cases_of[number].push_back(item);
      }
    }
    size_t found = 0;
    for (const auto& [number, cases] : cases_of) {
      const std::vector<Group> groups = GroupBy(cases, field.text);
      const std::set<int> outliers =
          OutliersOf(field, groups, size_of.at(number));
      if (outliers.empty()) continue;
      Note(outliers, field.advice);
      if (++found > kMaxClasses) continue;
      AddLine(absl::StrCat(field.name, ", the same on ",
                           classes.NameOf(field.scope, number)),
              groups, field.name == kMicroBatches ? PlanText() : "");
    }
    if (found > kMaxClasses) {
      lines_.push_back(absl::StrCat(field.name, ": likewise in ",
                                    found - kMaxClasses, " other classes"));
    }
  }

  void AddLine(absl::string_view name, const std::vector<Group>& groups,
               absl::string_view ending) {
    lines_.push_back(absl::StrCat(Line(name, groups, *rules_.classes), ending));
    for (size_t i = 0; i < std::min(groups.size(), kMaxGroups); ++i) {
      const std::vector<int>& ranks = groups[i].ranks;
      if (!rules_.classes->ListsPlaces(ranks)) continue;
      placed_.insert(ranks.begin(), ranks.end());
    }
  }

  std::set<int> Misfits(bool (*fits)(const Case&)) const {
    std::set<int> outliers;
    for (const Case& item : cases_) {
      if (!fits(item)) outliers.insert(item.rank);
    }
    return outliers;
  }

  // `size`: of the class, with the ranks from which nothing came yet.
  std::set<int> OutliersOf(const Field& field, const std::vector<Group>& groups,
                           int size) const {
    std::set<int> outliers;
    if (groups.size() < 2) return outliers;
    const std::optional<std::string> right = RightValue(field, groups, size);
    for (const Group& group : groups) {
      if (group.value == right) continue;
      outliers.insert(group.ranks.begin(), group.ranks.end());
    }
    return outliers;
  }

  // The majority's; else those that are right by the plan, by the next step or
  // by other ranks, if there are any.
  std::optional<std::string> RightValue(const Field& field,
                                        const std::vector<Group>& groups,
                                        int size) const {
    // Of the whole class: a majority of those received so far may be the
    // outliers.
    if (groups.back().ranks.size() * 2 > static_cast<size_t>(size)) {
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
    if (field.name == kPipeline) known = OtherPipelines(groups);
    for (const std::string& value : known) {
      for (const Group& group : groups) {
        if (group.value == value) return value;
      }
    }
    return std::nullopt;
  }

  // What most ranks run that compute other micro-batches, and as many: a
  // schedule depends on their number alone.
  std::vector<std::string> OtherPipelines(
      const std::vector<Group>& groups) const {
    std::set<int> own;
    for (const Group& group : groups) {
      own.insert(group.ranks.begin(), group.ranks.end());
    }
    const auto of_class = std::find_if(
        cases_.begin(), cases_.end(),
        [&](const Case& item) { return own.count(item.rank) > 0; });
    std::map<uint64_t, int> count_of;
    int others = 0;
    for (const Case& item : cases_) {
      if (own.count(item.rank) > 0 ||
          item.ticket.micro_batches != of_class->ticket.micro_batches) {
        continue;
      }
      ++count_of[item.ticket.pipeline];
      ++others;
    }
    for (const auto& [pipeline, count] : count_of) {
      if (count * 2 > others) return {Hex(pipeline)};
    }
    return {};
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
      lines_.push_back(absl::StrCat(rules_.classes->List(ahead),
                                    " skipped an exchange that the others "
                                    "made"));
    }
    if (!behind.empty()) {
      lines_.push_back(absl::StrCat(rules_.classes->List(behind),
                                    " made an exchange that the others did "
                                    "not"));
    }
  }

  std::string PlanText() const {
    if (CountedByProgram(rules_)) return "";
    if (SyncsEachBatch(rules_)) return " (1 in each exchange by the plan)";
    const auto [longest, shortest] = Windows(rules_);
    if (longest == shortest)
      return absl::StrCat(" (", longest, " by the plan)");
    return absl::StrCat(" (", shortest, " or ", longest,
                        " by the plan, the more on the first ranks",
                        rules_.classes->divided() ? " along dp)" : ")");
  }

  // Comes before weights are compared, where they are.
  void CheckWeights() {
    if (std::exchange(weights_checked_, true)) return;
    const std::set<int> outliers = Misfits(FitsWeight);
    if (outliers.empty()) return;
    AddLine("weight",
            GroupBy(cases_,
                    [](const Case& item) {
                      return absl::StrCat(item.ticket.weight);
                    }),
            "");
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
  std::set<int> placed_;
  bool step_differs_ = false;
  bool weights_checked_ = false;
};

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
  return std::all_of(std::begin(kFields), std::end(kFields),
                     [&](const Field& field) {
                       return !field.applies(rules) ||
                              rules.classes->ClassOf(field.scope, a.rank) !=
                                  rules.classes->ClassOf(field.scope, b.rank) ||
                              field.same(left, right);
                     });
}

bool SameTicket(const Ticket& a, const Ticket& b) {
  return a.round == b.round && a.step == b.step && a.micro == b.micro &&
         a.micro_batches == b.micro_batches && a.window == b.window &&
         SameWeight(a.weight, b.weight) && a.end_of_data == b.end_of_data &&
         a.plan_version == b.plan_version && a.hook == b.hook &&
         a.layout == b.layout && a.digest == b.digest &&
         a.pipeline == b.pipeline && a.checksum == b.checksum &&
         a.replicated_checksum == b.replicated_checksum && a.skip == b.skip;
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
