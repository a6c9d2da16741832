#ifndef COXSWAIN_SCHEDULE_TICKET_DIFF_H_
#define COXSWAIN_SCHEDULE_TICKET_DIFF_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedule/plan.h"
#include "schedule/rank_classes.h"
#include "schedule/ticket.h"

namespace coxswain::schedule {

// The rules that the tickets of one round are checked by.
struct TicketRules {
  const Plan* plan = nullptr;
  const RankClasses* classes = nullptr;
  // Windows may still have the length of the plan before: tail=carry.
  bool carried_windows = false;
  // The step that comes next, if all ranks are where they last agreed; none in
  // the first round.
  std::optional<int64_t> next_step;
};

struct RankTicket {
  int rank = 0;
  const Ticket* ticket = nullptr;
};

// Returns whether the plan alone allows what this rank announces.
bool TicketFits(const TicketRules& rules, const RankTicket& ticket);

// Returns whether two ranks announce the same: tickets that are equal in all
// fields that these two must have in common.
bool TicketsAgree(const TicketRules& rules, const RankTicket& a,
                  const RankTicket& b);

// Return whether the second repeats the first. `stop` may have been added
// since.
bool SameTicket(const Ticket& a, const Ticket& b);
bool SameVote(const Vote& a, const Vote& b);

// How tickets differ, for display.
struct TicketDiff {
  // Those that differ from the majority, or that do not fit the plan. Where
  // there is neither a majority nor anything else to go by: all.
  std::vector<int> outliers;       // ascending
  std::string opening;             // that they differ, if they do
  std::vector<std::string> lines;  // a sentence each, the most specific first
  std::string advice;              // what to look for
  std::vector<int> placed;  // ranks whose coordinates the lines have; ascending
  int64_t step = 0;         // of those that are no outliers, if there are
};
TicketDiff DiffTickets(const TicketRules& rules,
                       const std::vector<RankTicket>& tickets);

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_TICKET_DIFF_H_
