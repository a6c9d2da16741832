#include "cli/step_bars.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/progress.h"

namespace coxswain {
namespace {

constexpr double kBarWidth = 40;
constexpr size_t kMaxBars = 16;

// The mean over the steps that a rank told of.
struct RankTime {
  int rank = 0;
  bool straggler = false;
  double compute = 0, wait = 0, exchange = 0;

  double total() const { return compute + wait + exchange; }
};

bool IsStraggler(const v1::JobDescription& job, int rank) {
  const auto& all = job.stragglers();
  return std::find(all.begin(), all.end(), rank) != all.end();
}

std::vector<RankTime> Means(const v1::JobDescription& job) {
  std::vector<RankTime> ranks;
  for (const v1::MemberDescription& member : job.members()) {
    if (member.steps().empty()) continue;
    RankTime mean;
    mean.rank = member.member().rank();
    mean.straggler = IsStraggler(job, mean.rank);
    for (const v1::StepTiming& step : member.steps()) {
      mean.compute += step.compute() / member.steps_size();
      mean.wait += step.wait() / member.steps_size();
      mean.exchange += step.exchange() / member.steps_size();
    }
    ranks.push_back(mean);
  }
  return ranks;
}

// As many as there is room for; stragglers before others.
void KeepMost(std::vector<RankTime>* ranks) {
  if (ranks->size() <= kMaxBars) return;
  const auto by_mark = [](const RankTime& a, const RankTime& b) {
    return a.straggler && !b.straggler;
  };
  std::stable_sort(ranks->begin(), ranks->end(), by_mark);
  ranks->resize(kMaxBars);
}

// Rounded where the parts end, so that their lengths add up to the whole's.
std::string Bar(const RankTime& rank, double longest) {
  const auto end = [longest](double seconds) {
    return longest > 0
               ? static_cast<size_t>(std::lround(seconds / longest * kBarWidth))
               : 0;
  };
  std::string bar(end(rank.compute), '#');
  bar.resize(end(rank.compute + rank.wait), '.');
  bar.resize(end(rank.total()), '=');
  bar.resize(static_cast<size_t>(kBarWidth), ' ');
  return bar;
}

std::string HookLine(const v1::HookTraffic& hook) {
  const int64_t gradients = hook.gradient_bytes();
  const int64_t payload = hook.payload_bytes();
  std::string line =
      absl::StrCat("  ", hook.hook(), ": ", SizeText(gradients),
                   " of gradients, ", SizeText(payload), " exchanged");
  if (payload > 0 && gradients > payload) {
    absl::StrAppend(&line, ", ", SizeText(gradients - payload), " saved (",
                    absl::StrFormat("%.2f", static_cast<double>(gradients) /
                                                static_cast<double>(payload)),
                    "x)");
  }
  return line + "\n";
}

}  // namespace

std::string StepBars(const v1::JobDescription& job) {
  std::vector<RankTime> ranks = Means(job);
  if (ranks.empty()) return "";
  const size_t all = ranks.size();
  double longest = 0;
  for (const RankTime& rank : ranks) longest = std::max(longest, rank.total());
  KeepMost(&ranks);
  std::string text =
      "  mean of the last steps: # computes, . waits, = exchanges\n";
  for (const RankTime& rank : ranks) {
    absl::StrAppendFormat(&text, "  rank %-5d %s %9.1f ms%s\n", rank.rank,
                          Bar(rank, longest), rank.total() * 1000,
                          rank.straggler ? "  straggler" : "");
  }
  if (all > ranks.size()) {
    absl::StrAppend(&text, "  (", all - ranks.size(), " more ranks)\n");
  }
  for (const v1::HookTraffic& hook : job.hooks()) {
    if (hook.payload_bytes() > 0 || hook.gradient_bytes() > 0) {
      text += HookLine(hook);
    }
  }
  return text;
}

}  // namespace coxswain
