#include "schedule/terms.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/peer_text.h"
#include "base/status_macros.h"
#include "schedule/pipeline/generate.h"

namespace coxswain::schedule {
namespace {

constexpr absl::Duration kMinTimeout = absl::Milliseconds(100);
constexpr absl::Duration kMaxTimeout = absl::Hours(24 * 7);
// Shorter than this, a busy host's late heartbeats would cost members the job.
constexpr absl::Duration kMinStallTimeout = absl::Milliseconds(500);
constexpr char kOff[] = "off";
// Longer than any name or value of a setting.
constexpr size_t kMaxSettingBytes = 64;
constexpr char kNoPipeline[] = "none";

// How one setting is read and written.
struct Setting {
  std::string name;
  std::string values;
  std::string meaning;
  std::function<bool(Terms&, absl::string_view)> parse;
  std::function<std::string(const Terms&)> format;
  // Why a value is refused, where that is more than that it is none of
  // `values`; else null.
  std::function<std::string(absl::string_view)> refusal = nullptr;
};

using Names = std::vector<absl::string_view>;

template <typename E>
Setting Choice(std::string name, const Names& names, std::string meaning,
               E Terms::*field) {
  return Setting{std::move(name), absl::StrJoin(names, "|"), std::move(meaning),
                 [names, field](Terms& terms, absl::string_view value) {
                   const auto found =
                       std::find(names.begin(), names.end(), value);
                   if (found == names.end()) return false;
                   terms.*field = static_cast<E>(found - names.begin());
                   return true;
                 },
                 [names, field](const Terms& terms) {
                   return std::string(names[static_cast<size_t>(terms.*field)]);
                 }};
}

Setting Flag(std::string name, std::string meaning, bool Terms::*field) {
  return Choice(std::move(name), {"false", "true"}, std::move(meaning), field);
}

Setting Count(std::string name, std::string meaning, int64_t Terms::*field) {
  return Setting{
      std::move(name), "a number, from 0", std::move(meaning),
      [field](Terms& terms, absl::string_view value) {
        int64_t count = 0;
        if (!absl::SimpleAtoi(value, &count) || count < 0) return false;
        terms.*field = count;
        return true;
      },
      [field](const Terms& terms) { return absl::StrCat(terms.*field); }};
}

Setting Timeout(std::string name, std::string meaning,
                absl::Duration Terms::*field) {
  return Setting{std::move(name),
                 absl::StrCat("a duration such as 90s or 5m, from ",
                              absl::FormatDuration(kMinTimeout)),
                 std::move(meaning),
                 [field](Terms& terms, absl::string_view value) {
                   absl::Duration duration;
                   if (!absl::ParseDuration(value, &duration) ||
                       duration < kMinTimeout || duration > kMaxTimeout) {
                     return false;
                   }
                   terms.*field = duration;
                   return true;
                 },
                 [field](const Terms& terms) {
                   return absl::FormatDuration(terms.*field);
                 }};
}

// A timeout that a job may do without.
Setting OptionalTimeout(std::string name, std::string meaning,
                        absl::Duration least, absl::Duration Terms::*field) {
  return Setting{
      std::move(name),
      absl::StrCat(kOff, "|a duration such as 2s, from ",
                   absl::FormatDuration(least)),
      std::move(meaning),
      [field, least](Terms& terms, absl::string_view value) {
        absl::Duration duration = absl::InfiniteDuration();
        if (value != kOff && (!absl::ParseDuration(value, &duration) ||
                              duration < least || duration > kMaxTimeout)) {
          return false;
        }
        terms.*field = duration;
        return true;
      },
      [field](const Terms& terms) {
        const absl::Duration duration = terms.*field;
        return duration == absl::InfiniteDuration()
                   ? kOff
                   : absl::FormatDuration(duration);
      }};
}

// Reads what a pipeline's schedule is called, in any of its forms.
absl::StatusOr<std::string> ReadPipeline(absl::string_view value) {
  if (value == kNoPipeline) return std::string();
  COXSWAIN_ASSIGN_OR_RETURN(const pipeline::ScheduleSpec spec,
                            pipeline::ScheduleSpec::Parse(value));
  return spec.ToString();
}

Setting Pipeline(std::string name, std::string meaning,
                 std::string Terms::*field) {
  return Setting{
      std::move(name),
      absl::StrCat(kNoPipeline,
                   "|gpipe|gpipe(order=fifo)|1f1b|interleaved(chunks=N)|"
                   "zb_h1"),
      std::move(meaning),
      [field](Terms& terms, absl::string_view value) {
        absl::StatusOr<std::string> spec = ReadPipeline(value);
        if (!spec.ok()) return false;
        terms.*field = *std::move(spec);
        return true;
      },
      [field](const Terms& terms) {
        return (terms.*field).empty() ? kNoPipeline : terms.*field;
      },
      [](absl::string_view value) {
        return absl::StrCat(ReadPipeline(value).status().message(), ", or ",
                            kNoPipeline);
      }};
}

const std::vector<Setting>& Table() {
  using T = Terms;
  static const auto* const terms = new std::vector<Setting>{
      Choice("adjust_scheduler", {"step", "batch", "global_batch"},
             "what one step of a learning-rate scheduler stands for",
             &T::adjust_scheduler),
      Count("checkpoint_every",
            "state is saved after every so many-th step; 0: never",
            &T::checkpoint_every),
      Count("checksum_every",
            "parameters are compared before every so many-th step; 0: never",
            &T::checksum_every),
      Flag("commit_vote", "each step is voted on after its exchange",
           &T::commit_vote),
      Choice("enforcement", {"off", "audit", "strict"},
             "how the coordinator watches the exchanges", &T::enforcement),
      Choice("hook_state", {"carry", "reset"},
             "what a change of hooks does with the old one's state",
             &T::hook_state),
      Count("max_steps", "optimizer steps after which training ends; 0: none",
            &T::max_steps),
      Choice("on_resize", {"keep_local_batch", "keep_global_batch"},
             "what stays when the number of ranks changes", &T::on_resize),
      Choice("on_stall", {"abort", "warn"},
             "what happens to a job that makes no progress", &T::on_stall),
      Pipeline("pipeline",
               "in which order the ranks of a pipeline run its stages",
               &T::pipeline),
      Timeout("progress_timeout", "how long a rank may make no progress",
              &T::progress_timeout),
      OptionalTimeout("stall_timeout",
                      "how long nothing may come from a rank for which all "
                      "others wait",
                      kMinStallTimeout, &T::stall_timeout),
      Flag("sync_each_batch", "gradients are exchanged in every micro-batch",
           &T::sync_each_batch),
      Choice("tail", {"flush", "carry", "drop"},
             "what the short window at the end of the data becomes", &T::tail),
      Choice("uneven_data", {"refuse", "wait_for_all", "end_at_first"},
             "what happens where ranks have different amounts of data",
             &T::uneven_data),
      Choice("weighting", {"mean", "samples", "tokens"},
             "what a micro-batch counts for in the average", &T::weighting),
      Choice("windows", {"plan", "program"},
             "what sets the number of micro-batches of a window", &T::windows),
  };
  return *terms;
}

absl::Status NotTogether(absl::string_view one, absl::string_view other,
                         absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(one, " and ", other, " do not go together: ", why));
}

}  // namespace

absl::Status Terms::Set(absl::string_view name, absl::string_view value) {
  Names names;
  for (const Setting& setting : Table()) {
    names.push_back(setting.name);
    if (setting.name != name) continue;
    if (setting.parse(*this, value)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", value, " is not valid: ",
                     setting.refusal ? setting.refusal(value)
                                     : absl::StrCat("it is ", setting.values)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no setting of the plan called \"", name,
                   "\"; there are ", absl::StrJoin(names, ", ")));
}

absl::StatusOr<Terms> Terms::FromMap(
    const std::map<std::string, std::string>& values) {
  Terms terms;
  for (const auto& [name, value] : values) {
    const size_t bytes = std::max(name.size(), value.size());
    if (bytes > kMaxSettingBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the setting \"", OneLine(Shorten(name, kMaxSettingBytes)),
          "\" of the schedule has ", bytes,
          " bytes in its name or value, and at most ", kMaxSettingBytes,
          " are known here"));
    }
    COXSWAIN_RETURN_IF_ERROR(terms.Set(name, value));
  }
  return terms;
}

std::map<std::string, std::string> Terms::ToMap() const {
  std::map<std::string, std::string> values;
  for (const Setting& setting : Table())
    values[setting.name] = setting.format(*this);
  return values;
}

std::vector<std::string> Terms::Changed() const {
  const Terms defaults;
  std::vector<std::string> changed;
  for (const Setting& setting : Table()) {
    const std::string value = setting.format(*this);
    if (value == setting.format(defaults)) continue;
    changed.push_back(absl::StrCat(setting.name, "=", value));
  }
  return changed;
}

absl::Status Terms::Validate() const {
  if (sync_each_batch && weighting != Weighting::kMean) {
    return NotTogether("sync_each_batch", "weighting=samples|tokens",
                       "a window's weight is known at its end only");
  }
  if (sync_each_batch && uneven_data != UnevenData::kRefuse) {
    return NotTogether("sync_each_batch", "uneven_data",
                       "ranks without data do not know where the others' "
                       "windows end");
  }
  if (sync_each_batch && on_resize == OnResize::kKeepGlobalBatch) {
    return NotTogether("sync_each_batch", "on_resize=keep_global_batch",
                       "ranks may get windows of different lengths");
  }
  if (on_resize == OnResize::kKeepGlobalBatch &&
      uneven_data == UnevenData::kRefuse) {
    return NotTogether("on_resize=keep_global_batch", "uneven_data=refuse",
                       "ranks may get windows of different lengths, and then "
                       "reach the end of their data at different steps: choose "
                       "wait_for_all or end_at_first");
  }
  if (windows == Windows::kProgram && sync_each_batch) {
    return NotTogether("windows=program", "sync_each_batch",
                       "the end of a window would not be known");
  }
  if (windows == Windows::kProgram && uneven_data != UnevenData::kRefuse) {
    return NotTogether("windows=program", "uneven_data",
                       "it is a common count that is compared");
  }
  if (tail == TailPolicy::kCarry && uneven_data != UnevenData::kRefuse) {
    return NotTogether("tail=carry", "uneven_data",
                       "ranks would carry windows of different lengths");
  }
  if (!pipeline.empty() && sync_each_batch) {
    return NotTogether("pipeline", "sync_each_batch",
                       "a pipeline exchanges gradients once, at the end of a "
                       "window");
  }
  if (!pipeline.empty() && windows == Windows::kProgram) {
    return NotTogether("pipeline", "windows=program",
                       "its schedule is made for the plan's accumulation");
  }
  if (enforcement == Enforcement::kOff && (commit_vote || checksum_every > 0)) {
    return NotTogether("enforcement=off", "commit_vote and checksum_every",
                       "it is the coordinator that compares");
  }
  return absl::OkStatus();
}

absl::StatusOr<Terms> ReadTerms(
    const std::map<std::string, std::string>& values) {
  COXSWAIN_ASSIGN_OR_RETURN(Terms terms, Terms::FromMap(values));
  COXSWAIN_RETURN_IF_ERROR(terms.Validate());
  return terms;
}

std::vector<SettingInfo> SettingList() {
  std::vector<SettingInfo> list;
  for (const Setting& setting : Table()) {
    list.push_back({setting.name, setting.values, setting.meaning});
  }
  return list;
}

std::string PlannedCheckpoint(int64_t checkpoint_every, int64_t steps_done) {
  if (checkpoint_every <= 0 || steps_done <= 0) return "";
  if (steps_done % checkpoint_every != 0) return "";
  return absl::StrCat("checkpoint_every=", checkpoint_every);
}

int MicroBatchShare(int64_t total, int world_size, int rank) {
  const int64_t share =
      total / world_size + (rank < total % world_size ? 1 : 0);
  return static_cast<int>(std::max<int64_t>(share, 1));
}

}  // namespace coxswain::schedule
