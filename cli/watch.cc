#include "cli/watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "cli/launch/signals.h"
#include "cli/status.h"
#include "cli/terminal.h"
#include "client/rpc/stub_factory.h"

namespace coxswain {
namespace {

constexpr absl::Duration kRateOver = absl::Seconds(10);
constexpr int kWorkerBarWidth = 30;
constexpr int kStepsShown = 16;
// The other screen, without a cursor; and back.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";

int64_t MaxSteps(const v1::JobDescription& job) {
  const auto found = job.plan().terms().find("max_steps");
  int64_t steps = 0;
  if (found == job.plan().terms().end()) return 0;
  return absl::SimpleAtoi(found->second, &steps) ? std::max<int64_t>(0, steps)
                                                 : 0;
}

std::string RateText(double rate) {
  return rate < 0 ? "-" : absl::StrFormat("%.*f", rate < 10 ? 2 : 1, rate);
}

std::string BarText(double part) {
  const int filled = static_cast<int>(std::min(1.0, part) * kWorkerBarWidth);
  return absl::StrCat("[", std::string(filled, '#'),
                      std::string(kWorkerBarWidth - filled, '.'), "]");
}

std::string ProgressText(const v1::JobDescription& job, double rate) {
  const int64_t step = StepRates::StepOf(job);
  const int64_t most = MaxSteps(job);
  std::string text = absl::StrCat("step ", step);
  if (most > 0) {
    const double part = static_cast<double>(step) / most;
    absl::StrAppend(&text, " of ", most, " ", BarText(part));
  }
  absl::StrAppend(&text, ", ", RateText(rate), " steps/s");
  if (most > step && rate > 0) {
    const absl::Duration left = absl::Seconds((most - step) / rate);
    absl::StrAppend(&text, ", ",
                    absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                    " left");
  }
  return text;
}

std::string StragglersText(const v1::JobDescription& job) {
  if (job.stragglers().empty()) return "";
  return absl::StrCat(", stragglers ", absl::StrJoin(job.stragglers(), " "));
}

// Removes control characters: a peer's name moves no cursor.
std::string Harmless(std::string line) { return OneLine(std::move(line)); }

// Switches the terminal to its other screen, and back when it is destroyed.
class Screen {
 public:
  explicit Screen(const WatchWorld& world) : world_(world) {
    if (world_.terminal) world_.write(kEnter);
  }
  ~Screen() {
    if (world_.terminal) world_.write(kLeave);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

 private:
  const WatchWorld& world_;
};

bool ShowError(const WatchWorld& world, const absl::Status& error) {
  const std::string text = absl::StrCat(
      "no answer, retrying: ", OneLine(std::string(error.message())), "\n");
  return world.write(world.terminal ? WatchFrame(text, world.size()) : text);
}

bool Show(const WatchWorld& world, const v1::DescribeResponse& description,
          const StepRates& rates) {
  const absl::Time now = world.clock->WallTime();
  return world.write(
      world.terminal
          ? WatchFrame(WatchPage(description, rates, now), world.size())
          : WatchLines(description, rates, now));
}

TerminalSize SizeOfStdout() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) {
    return {};
  }
  return {size.ws_row, size.ws_col};
}

constexpr double kStepBarWidth = 40;
constexpr size_t kMaxBars = 16;

// The mean over the steps that a rank has reported.
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

// Keeps as many as fit; stragglers before others.
void KeepMost(std::vector<RankTime>* ranks) {
  if (ranks->size() <= kMaxBars) return;
  const auto by_mark = [](const RankTime& a, const RankTime& b) {
    return a.straggler && !b.straggler;
  };
  std::stable_sort(ranks->begin(), ranks->end(), by_mark);
  ranks->resize(kMaxBars);
}

// Rounds the ends of the parts, so that their lengths add up to the total's.
std::string Bar(const RankTime& rank, double longest) {
  const auto end = [longest](double seconds) {
    return longest > 0 ? static_cast<size_t>(
                             std::lround(seconds / longest * kStepBarWidth))
                       : 0;
  };
  std::string bar(end(rank.compute), '#');
  bar.resize(end(rank.compute + rank.wait), '.');
  bar.resize(end(rank.total()), '=');
  bar.resize(static_cast<size_t>(kStepBarWidth), ' ');
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

int64_t StepRates::StepOf(const v1::JobDescription& job) {
  int64_t step = 0;
  for (const v1::MemberDescription& member : job.members()) {
    step = std::max(step, member.step());
  }
  return step;
}

void StepRates::Note(const v1::DescribeResponse& description, absl::Time now) {
  std::map<std::string, Seen> still;
  for (const v1::JobDescription& job : description.jobs()) {
    Seen& seen = still[job.job()];
    const auto before = jobs_.find(job.job());
    if (before != jobs_.end() &&
        before->second.generation == job.generation()) {
      seen = std::move(before->second);
    }
    seen.generation = job.generation();
    seen.steps.emplace_back(now, StepOf(job));
    while (seen.steps.size() > 2 &&
           now - seen.steps.front().first > kRateOver) {
      seen.steps.pop_front();
    }
  }
  jobs_ = std::move(still);
}

double StepRates::Of(const v1::JobDescription& job) const {
  const auto found = jobs_.find(job.job());
  if (found == jobs_.end() || found->second.steps.size() < 2) return -1;
  const auto& [began, first] = found->second.steps.front();
  const auto& [ended, last] = found->second.steps.back();
  if (ended <= began) return -1;
  return static_cast<double>(std::max<int64_t>(0, last - first)) /
         absl::ToDoubleSeconds(ended - began);
}

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

std::string WatchPage(const v1::DescribeResponse& description,
                      const StepRates& rates, absl::Time wall_time) {
  std::string page;
  for (const v1::JobDescription& job : description.jobs()) {
    absl::StrAppend(&page, job.job(), ": ", ProgressText(job, rates.Of(job)),
                    "\n", StepBars(job));
  }
  return absl::StrCat(page, page.empty() ? "" : "\n",
                      FormatTable(description, wall_time));
}

std::string WatchLines(const v1::DescribeResponse& description,
                       const StepRates& rates, absl::Time wall_time) {
  std::string lines;
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%S", wall_time, absl::LocalTimeZone());
  for (const v1::JobDescription& job : description.jobs()) {
    absl::StrAppend(&lines, time, " job ", job.job(), ": ", job.state(),
                    ", generation ", job.generation(), ", ", job.members_size(),
                    " members, ", ProgressText(job, rates.Of(job)),
                    StragglersText(job), "\n");
  }
  return lines.empty() ? absl::StrCat(time, " no jobs\n") : lines;
}

std::string WatchFrame(const std::string& page, const TerminalSize& size) {
  std::vector<std::string> lines = absl::StrSplit(page, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const size_t rows = std::max(2, size.rows) - 1;
  if (lines.size() > rows) {
    const size_t hidden = lines.size() - rows + 1;
    lines.resize(rows - 1);
    lines.push_back(absl::StrCat("(", hidden, " more lines)"));
  }
  std::string frame = "\x1b[H";
  const size_t columns = std::max(10, size.columns);
  for (std::string& line : lines) {
    absl::StrAppend(&frame, Shorten(Harmless(std::move(line)), columns),
                    "\x1b[K\r\n");
  }
  return frame + "\x1b[J";
}

absl::Status WatchStatus(const WatchWorld& world) {
  auto description = world.describe();
  COXSWAIN_RETURN_IF_ERROR(description.status());
  const Screen screen(world);
  StepRates rates;
  while (world.stop->status().ok()) {
    bool shown = false;
    if (description.ok()) {
      rates.Note(*description, world.clock->Now());
      shown = Show(world, *description, rates);
    } else {
      shown = ShowError(world, description.status());
    }
    if (!shown) return absl::UnavailableError("cannot write to stdout");
    if (world.stop->WaitFor(world.interval)) break;
    description = world.describe();
  }
  return absl::OkStatus();
}

absl::Status WatchStatus(const StatusOptions& options) {
  HeldSignals signals({SIGINT, SIGTERM});
  COXSWAIN_ASSIGN_OR_RETURN(const auto watch, StopWatch::Start(signals));
  const auto stub =
      ConnectCoordinator(options.coordinator, RetryPolicy(), options.security);
  WatchWorld world;
  world.describe = [&]() {
    return AskStatus(options, *stub, &watch->stop(), kStepsShown);
  };
  world.stop = &watch->stop();
  world.write = [](const std::string& text) {
    return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  };
  world.terminal = isatty(STDOUT_FILENO) == 1;
  world.size = SizeOfStdout;
  world.interval = options.interval;
  return WatchStatus(world);
}

}  // namespace coxswain
