#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/status_prefix.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "schedule/pipeline/generate.h"
#include "schedule/pipeline/picture.h"
#include "schedule/pipeline/proof.h"
#include "schedule/pipeline/schedule.h"
#include "schedule/pipeline/timing.h"

namespace coxswain {
namespace {

constexpr int kPictureWidth = 120;
// What is drawn, and listed by rank.
constexpr int kMaxShownRanks = 64;
constexpr double kMaxShownUnits = 500;
// So many bytes for each action; hardly any takes more.
constexpr int64_t kMaxFileBytes = 20 * pipeline::kMaxActions;

std::string Percent(double share) {
  return absl::StrFormat("%.1f %%", 100 * share);
}

// `least`: what a channel must hold; `peak`: what one has held.
std::string ChannelText(int least, int peak) {
  if (peak == 0) return "there are no messages";
  return absl::StrCat(least == 0
                          ? "need not hold messages"
                          : absl::StrCat("each must hold ", least,
                                         least == 1 ? " message" : " messages"),
                      "; at these times none has more than ", peak);
}

std::string StagesText(const pipeline::Schedule& schedule, int rank) {
  std::vector<int> stages = schedule.StagesOf(rank);
  constexpr size_t kShown = 4;
  const bool cut = stages.size() > kShown;
  if (cut) stages.resize(kShown);
  return absl::StrCat(absl::StrJoin(stages, ","), cut ? ",..." : "");
}

std::string RankTable(const pipeline::Schedule& schedule,
                      const pipeline::Timing& timing) {
  std::vector<TableRow> rows = {{"RANK", "STAGES", "BUBBLE", "ACTIVATIONS"}};
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    rows.push_back({absl::StrCat(rank), StagesText(schedule, rank),
                    Percent(timing.Bubble(rank)),
                    absl::StrCat(timing.peak_activations[rank])});
  }
  return AlignTable(rows);
}

// Returns what is known of a schedule with its transfers. `capacity`: -1: any.
absl::StatusOr<std::string> ScheduleText(const pipeline::Schedule& schedule,
                                         int capacity) {
  pipeline::TimingOptions options;
  options.capacity = capacity >= 0 ? capacity : schedule.micro_batches();
  COXSWAIN_ASSIGN_OR_RETURN(const pipeline::Timing timing,
                            pipeline::Time(schedule, options));
  COXSWAIN_ASSIGN_OR_RETURN(const int least, pipeline::LeastCapacity(schedule));
  std::string text;
  const bool small = schedule.ranks() <= kMaxShownRanks;
  if (small && timing.makespan <= kMaxShownUnits) {
    absl::StrAppend(
        &text, pipeline::DrawPicture(schedule, timing, kPictureWidth), "\n");
  }
  if (small) absl::StrAppend(&text, RankTable(schedule, timing), "\n");
  const std::vector<int>& peaks = timing.peak_activations;
  absl::StrAppend(
      &text, "makespan     ", timing.makespan,
      ", where a forward pass through a stage takes 1, a backward pass 2\n",
      "bubble       ", Percent(timing.Bubble()), "\n",
      "activations  of at most ", *std::max_element(peaks.begin(), peaks.end()),
      " passes on one rank\n", "channels     ",
      ChannelText(least, timing.peak_messages), "\n", "hash         ",
      absl::Hex(schedule.Hash(), absl::kZeroPad16), "\n");
  return text;
}

std::string SizesText(const pipeline::Schedule& schedule) {
  return absl::StrCat(
      schedule.ranks(), schedule.ranks() == 1 ? " rank, " : " ranks, ",
      schedule.stages(), schedule.stages() == 1 ? " stage, " : " stages, ",
      schedule.micro_batches(),
      schedule.micro_batches() == 1 ? " micro-batch" : " micro-batches");
}

absl::StatusOr<std::string> ReadSchedule(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char block[1 << 16];
  while (file.read(block, sizeof(block)) || file.gcount() > 0) {
    text.append(block, file.gcount());
    if (static_cast<int64_t>(text.size()) > kMaxFileBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has more than ", kMaxFileBytes,
                       " bytes, which is no schedule"));
    }
  }
  if (!file.eof()) {
    return absl::NotFoundError(
        absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> DescribeSchedule(
    const PlanScheduleOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const pipeline::ScheduleSpec spec,
                            pipeline::ScheduleSpec::Parse(options.pipeline));
  COXSWAIN_ASSIGN_OR_RETURN(
      const pipeline::Schedule compute,
      pipeline::Generate(spec, options.ranks, options.accumulation));
  COXSWAIN_ASSIGN_OR_RETURN(const pipeline::Schedule schedule,
                            pipeline::WithTransfers(compute));
  const auto report = ScheduleText(schedule, options.capacity);
  if (!report.ok())
    return WithPrefix(absl::StrCat(spec.ToString(), ": "), report.status());
  if (options.csv) return compute.ToCsv();
  return absl::StrCat(spec.ToString(), ": ", SizesText(schedule), "\n\n",
                      *report);
}

absl::StatusOr<std::string> CheckSchedule(const PlanCheckOptions& options) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string text, ReadSchedule(options.file));
  const std::string prefix = absl::StrCat(options.file, ": ");
  const auto read = pipeline::Schedule::FromCsv(text);
  if (!read.ok()) return WithPrefix(prefix, read.status());
  const auto schedule = pipeline::WithTransfers(*read);
  if (!schedule.ok()) return WithPrefix(prefix, schedule.status());
  const auto report = ScheduleText(*schedule, options.capacity);
  if (!report.ok()) return WithPrefix(prefix, report.status());
  return absl::StrCat(
      prefix, SizesText(*schedule),
      read->has_transfers() ? "" : "; sends and receives have been added",
      "\n\n", *report);
}

}  // namespace coxswain
