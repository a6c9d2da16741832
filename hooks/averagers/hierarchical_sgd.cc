#include "hooks/averagers/hierarchical_sgd.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "hooks/averagers/mean.h"
#include "hooks/averagers/stepped_averager.h"

namespace coxswain {
namespace {

constexpr char kForm[] =
    "PERIODxSIZE joined by +, smallest first, each a multiple of the one "
    "before; the last SIZE may be all";
constexpr int64_t kMaxPeriod = 1'000'000'000;
constexpr int64_t kMaxSize = 1 << 20;

absl::StatusOr<AveragingLevel> ParseLevel(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  AveragingLevel level;
  const bool all = parts.size() == 2 && parts[1] == "all";
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &level.period) ||
      (!all && !absl::SimpleAtoi(parts[1], &level.size))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a period and a group size such as 8x4 or 8xall"));
  }
  if (level.period < 1 || level.period > kMaxPeriod) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the period of '", text, "' is not from 1 to ", kMaxPeriod));
  }
  if (!all && (level.size < 1 || level.size > kMaxSize)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the group size of '", text, "' is not from 1 to ", kMaxSize));
  }
  return level;
}

std::string LevelText(const AveragingLevel& level) {
  return absl::StrCat(
      level.period, "x",
      level.size == 0 ? std::string("all") : absl::StrCat(level.size));
}

// Whether `to` may follow `from`.
absl::Status CheckOrder(const AveragingLevel& from, const AveragingLevel& to) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(
        LevelText(to), " cannot follow ", LevelText(from), ": ", why));
  };
  if (from.size == 0) return wrong("a group of all ranks comes last");
  if (to.period <= from.period || to.period % from.period != 0) {
    return wrong("a period must be a larger multiple of the one before");
  }
  if (to.size != 0 && (to.size <= from.size || to.size % from.size != 0)) {
    return wrong("a group size must be a larger multiple of the one before");
  }
  return absl::OkStatus();
}

class HierarchicalSgd : public SteppedAverager {
 public:
  HierarchicalSgd(std::string spec, int64_t start_step,
                  std::vector<AveragingLevel> levels)
      : SteppedAverager(std::move(spec), start_step),
        levels_(std::move(levels)),
        whole_period_(levels_.back().period) {}

 protected:
  bool Exchanges(int64_t call) const override {
    return call % levels_.front().period == 0;
  }
  bool Unites(int64_t call) const override { return call % whole_period_ == 0; }

  absl::Status Connect(const std::vector<ParameterSpec>&,
                       const std::vector<Span>&) override {
    const int64_t last = levels_.back().size;
    if (last != 0 && last != world().size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "averager ", spec(), ": the last group has ", last,
          " ranks and the job ", world().size(),
          "; the last level must average over all ranks: write all"));
    }
    groups_.clear();
    for (const AveragingLevel& level : levels_) {
      whole_period_ = level.period;
      if (level.size == 0 || level.size >= world().size()) break;
      if (level.size == 1) continue;  // the mean of one
      COXSWAIN_ASSIGN_OR_RETURN(
          groups_[level.period],
          world().Split(BlockOf(world().rank(), world().size(), level.size)));
    }
    return absl::OkStatus();
  }

  absl::Status Average(int64_t call, const std::vector<Span>& values) override {
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
      if (call % level->period != 0) continue;
      if (level->size == 1) return absl::OkStatus();
      const auto group = groups_.find(level->period);
      if (group == groups_.end()) return Unite(values);
      return AverageOver(*group->second, values, scratch());
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<AveragingLevel> levels_;
  // Of the smallest level that has all ranks in one group.
  int64_t whole_period_;
  // By period, those that are smaller than the world.
  std::map<int64_t, std::unique_ptr<Communicator>> groups_;
};

}  // namespace

absl::StatusOr<std::vector<AveragingLevel>> ParseLevels(
    absl::string_view text) {
  std::vector<AveragingLevel> levels;
  for (const absl::string_view part : absl::StrSplit(text, '+')) {
    COXSWAIN_ASSIGN_OR_RETURN(const AveragingLevel level,
                              ParseLevel(std::string(part)));
    if (!levels.empty()) {
      COXSWAIN_RETURN_IF_ERROR(CheckOrder(levels.back(), level));
    }
    levels.push_back(level);
  }
  return levels;
}

std::string LevelsText(const std::vector<AveragingLevel>& levels) {
  return absl::StrJoin(levels, "+",
                       [](std::string* out, const AveragingLevel& level) {
                         out->append(LevelText(level));
                       });
}

HookRow HierarchicalSgdRow() {
  HookRow row;
  row.description.name = "hierarchical_sgd";
  row.description.help =
      "local steps, parameters averaged in groups that grow with the period";
  row.description.options = {
      TextOption(
          "levels", "2x8+16xall", kForm,
          [](absl::string_view text) -> absl::StatusOr<std::string> {
            COXSWAIN_ASSIGN_OR_RETURN(const auto levels, ParseLevels(text));
            return LevelsText(levels);
          },
          "how often the parameters of how many consecutive ranks are averaged",
          {"period_group_size_dict"}),
      IntOption("start_step", 1000, 0, 1'000'000'000,
                "steps that average gradients plainly over all ranks",
                {"warmup_steps"}),
  };
  row.description.card = {
      "gradients: N elements before the start, 0 after it; parameters: 4 bytes "
      "an element (8 of float64) in every step that has a level",
      "gradients: 1 all-reduce before the start, 0 after it; parameters: 1 "
      "all-reduce per 4 Mi elements, within the largest group whose period "
      "divides the step",
      "two chunks of 4 Mi elements from the first average on; a communicator "
      "per level",
      "between two averages over all the ranks hold different parameters; "
      "parameters are divided and summed in float32 (float64 for float64)",
      "where all links are equally fast (post_local_sgd is simpler), or ranks "
      "of one host are not consecutive",
  };
  row.make = [](std::string spec, OptionValues options, std::unique_ptr<Hook>) {
    return MakeLocalGradientsHook(std::move(spec), options.Int("start_step"),
                                  /*group=*/1);
  };
  row.make_averager = [](std::string spec, const OptionValues& options) {
    auto levels = ParseLevels(options.Text("levels"));
    COXSWAIN_CHECK(levels.ok());  // the option's check has read it
    return std::make_unique<HierarchicalSgd>(
        std::move(spec), options.Int("start_step"), *std::move(levels));
  };
  return row;
}

}  // namespace coxswain
